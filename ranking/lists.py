"""Candidate lists for past events, made by the very code that serves requests.

For each event: the state of its user just before it, the candidates that retrieval finds for
that state, and the ranker's inputs with item features as of that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from features.encode import encode_cross, encode_items
from features.spec import names
from features.store import item_features_as_of, states_as_of
from ranking.catalogue import ItemTable, LiveCatalogue
from ranking.covisits import covisits_of
from ranking.fine.inputs import ranker_inputs
from ranking.id_map import IdMap
from ranking.requests import RequestReader, Requests
from ranking.retrieval.retriever import RetrievalConfig, Retriever, UserTower
from ranking.types import Candidates, FloatArray, Histories, Items, Query, RowArray

if TYPE_CHECKING:
    import psycopg

    from features.store import Catalogue, Interactions

Part = tuple[Candidates, Histories, dict[str, NDArray[Any]]]
"""One batch: what was retrieved, for which histories, and the ranker's inputs."""

_BATCH = 1024  # each batch reads all events of its candidates once


def training_items(
    catalogue: Catalogue,
    vectors: FloatArray,
    neighbours: NDArray[np.int32],
    neighbour_scores: FloatArray,
    ease: NDArray[np.int32],
    ease_weights: FloatArray,
    trending: NDArray[np.int32],
    trending_scores: FloatArray,
) -> tuple[Items, tuple[str, ...]]:
    """Return the per-item arrays of a catalogue under training, and the category columns.

    Every item counts as available, since it was when the events happened; features and
    co-visits are left out, since lists take them as of each event.
    """
    category_names = tuple(sorted({name for held in catalogue.categories for name in held}))
    column = {name: place for place, name in enumerate(category_names)}
    N = len(catalogue.item_keys)
    categories = np.zeros((N, len(category_names)), np.uint8)
    for row, held in enumerate(catalogue.categories):
        categories[row, [column[name] for name in held]] = 1
    items = Items(
        vectors=vectors,
        available=np.ones(N, np.bool_),
        created=catalogue.created_at,
        categories=categories,
        features=np.zeros((N, len(names("item"))), np.float32),
        neighbours=neighbours,
        neighbour_scores=neighbour_scores,
        trending=trending,
        trending_scores=trending_scores,
        covisits=np.empty((N, 0), np.int32),
        covisit_pairs=np.empty((N, 0), np.float32),
        ease=ease,
        ease_weights=ease_weights,
    )
    return items, category_names


class Lists:
    """Makes candidate lists for past events.

    Parameters
    ----------
    connection : psycopg.Connection
    catalogue : features.store.Catalogue
    interactions : features.store.Interactions
    items : Items
        See :func:`training_items`.
    category_names : tuple of str
    user_tower : callable
    config : RetrievalConfig
    history_limit : int
        Latest events of a state.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        catalogue: Catalogue,
        interactions: Interactions,
        items: Items,
        category_names: tuple[str, ...],
        user_tower: UserTower,
        config: RetrievalConfig,
        history_limit: int = 200,
    ) -> None:
        self._connection = connection
        self._interactions = interactions
        self._keys = catalogue.item_keys
        self._items = items
        self._history_limit = history_limit
        table = ItemTable(
            ids=IdMap.from_ids(catalogue.item_ids),
            keys=catalogue.item_keys,
            field_text=np.empty(0, np.uint8),
            field_offsets=np.zeros(len(catalogue.item_keys) + 1, np.int64),
            category_names=category_names,
            items=items,
            watermark=catalogue.watermark,
        )
        live = LiveCatalogue(table)
        self._covisits = covisits_of(connection, live)
        self._reader = RequestReader(live, items, history_limit)
        self._retriever = Retriever(user_tower, items, config)

    def of_events(
        self,
        events: RowArray,
        limit: int,
        progress: Callable[[int, int], None] | None = None,
        as_of: float | None = None,
    ) -> list[Part]:
        """Return lists for events, in batches.

        Parameters
        ----------
        events : (E,) int64
            Positions in the interactions.
        limit : int
            Candidates of each list.
        progress : callable, optional
            Called as (done, total).
        as_of : float, optional
            Unix seconds of all lists; each must lie before the user's event. None takes the moment
            of each event.
        """
        happened = self._interactions
        moments = happened.times[events]
        if as_of is not None:
            moments = np.full(len(events), as_of)
        states = states_as_of(
            self._connection,
            happened.user_keys[events],
            moments,
            self._history_limit,
            happened.interaction_ids[events],
        )
        parts = []
        for start in range(0, len(states), _BATCH):
            chosen = states[start : start + _BATCH]
            queries = [Query(state.user_id, limit, state.as_of) for state in chosen]
            requests = self._reader.read(queries, chosen)
            limits = np.full(len(chosen), limit)
            candidates = self._retriever.retrieve(requests.histories, requests.filters, limits)
            parts.append((candidates, requests.histories, self._inputs(requests, candidates)))
            if progress:
                progress(min(start + _BATCH, len(states)), len(states))
        return parts

    def _inputs(self, requests: Requests, candidates: Candidates) -> dict[str, NDArray[Any]]:
        rows = candidates.rows
        real = rows >= 0
        moments = np.broadcast_to(requests.histories.now[:, None], rows.shape)
        item = np.zeros((*rows.shape, len(names("item"))), np.float32)
        if real.any():
            raw = item_features_as_of(self._connection, self._keys[rows[real]], moments[real])
            item[real] = encode_items(raw)
        cross = encode_cross(
            requests.category_events, requests.category_value_sums, self._items.categories, rows
        )
        return ranker_inputs(
            candidates,
            requests.histories,
            requests.users,
            item,
            cross,
            self._items,
            self._covisits(self._items, requests.histories),
        )
