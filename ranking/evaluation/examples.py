"""Single users for the report: what they liked, chose next, and are recommended."""

from __future__ import annotations

import json

import numpy as np

from features.states import UserState
from ranking.catalogue import LiveCatalogue
from ranking.evaluation.result import Example, ExampleItem
from ranking.types import BoolArray, FloatArray, Ranking, RowArray

_TITLES = 5


def example(
    state: UserState,
    ranking: Ranking,
    ranked: RowArray,
    relevant: RowArray,
    catalogue: LiveCatalogue,
) -> Example:
    """Describe one test user.

    Parameters
    ----------
    state : UserState
        As of the test event.
    ranking : Ranking
        What the release recommends.
    ranked : (k,) int64
        All ranked rows, padded by -1.
    relevant : (R,) int64
        Rows of the test items, padded by -1.
    catalogue : LiveCatalogue

    Returns
    -------
    Example
    """
    wanted = relevant[relevant >= 0]
    history = catalogue.rows_of_keys(state.item_keys[_liked(state.values)][::-1][:_TITLES])
    return Example(
        user_id=state.user_id,
        history=[_title(catalogue, row) for row in history.tolist()],
        held_out=[_title(catalogue, row) for row in wanted[:_TITLES].tolist()],
        places=(np.flatnonzero(np.isin(ranked, wanted)) + 1).tolist(),
        recommended=[
            ExampleItem(
                title=_title(catalogue, item.row),
                score=item.score,
                sources=[source.name for source in item.sources],
                hit=item.row in wanted,
            )
            for item in ranking.items
        ],
    )


def _liked(values: FloatArray) -> BoolArray:
    """Return which events are at least the user's mean; one without a value counts as liked."""
    valued = ~np.isnan(values)
    mean = values[valued].mean() if valued.any() else 0.0
    return np.asarray(~valued | (values >= mean), dtype=np.bool_)


def _title(catalogue: LiveCatalogue, row: int) -> str:
    if not 0 <= row < len(catalogue.items):
        return "(an item that this release does not have)"
    fields = json.loads(catalogue.fields(row) or b"{}")
    return str(fields.get("title") or catalogue.id(row))
