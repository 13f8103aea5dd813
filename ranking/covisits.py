"""Co-visits in the rows of a release: those of the last refresh, or as of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from features.covisits import MOST_FOLLOWERS, covisits_as_of, read_covisits
from ranking.types import Covisits, FloatArray, Histories, Items, RowArray

if TYPE_CHECKING:
    import psycopg

    from ranking.catalogue import LiveCatalogue
    from ranking.pipeline import CovisitsOf


def covisit_arrays(
    connection: psycopg.Connection[Any], item_keys: RowArray
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the co-visits of the last refresh by row.

    Parameters
    ----------
    connection : psycopg.Connection
    item_keys : (N,) int64
        Keys of the rows, ascending; followers that are not among them are left out.

    Returns
    -------
    rows : (N, P) int32
        -1 where there are fewer.
    pairs : (N, P) float32
    """
    items, others, places, counts = read_covisits(connection)
    rows = np.full((len(item_keys), MOST_FOLLOWERS), -1, np.int32)
    pairs = np.zeros(rows.shape, np.float32)
    if len(item_keys):
        at, to = np.searchsorted(item_keys, items), np.searchsorted(item_keys, others)
        last = len(item_keys) - 1
        both = (item_keys[np.minimum(at, last)] == items) & (
            item_keys[np.minimum(to, last)] == others
        )
        rows[at[both], places[both]] = to[both]
        pairs[at[both], places[both]] = counts[both]
    return rows, pairs


def covisits_of(connection: psycopg.Connection[Any], catalogue: LiveCatalogue) -> CovisitsOf:
    """Return co-visits as of each request, from the days before its own: no future in them."""

    def covisits(items: Items, histories: Histories) -> Covisits:
        B = len(histories.lengths)
        latest = histories.rows[np.arange(B), np.maximum(histories.lengths - 1, 0)]
        known = (histories.lengths > 0) & (latest >= 0)
        rows = np.full((B, MOST_FOLLOWERS), -1, np.int32)
        pairs = np.zeros(rows.shape, np.float32)
        if known.any():
            others, counts = covisits_as_of(
                connection, catalogue.keys(latest[known]), histories.now[known]
            )
            found = catalogue.rows_of_keys(others.ravel()).reshape(others.shape)
            rows[known] = np.where((others >= 0) & (found < len(items)), found, -1)
            pairs[known] = counts
        return Covisits(rows, pairs)

    return covisits
