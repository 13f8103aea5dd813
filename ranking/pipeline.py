"""The way of a request through all stages; the only place that knows their order.

``queries + user states -> retrieve -> features -> rank -> rerank -> rankings``, for a whole
batch at once. The user states are read by the caller (``features.store``), so that this runs
without a database or an event loop: in a replica, in an evaluation, in a notebook.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from features.encode import encode_cross
from features.errors import InputError
from features.states import UserState
from ranking.answer import Ranked, answer, with_pins
from ranking.catalogue import LiveCatalogue
from ranking.fine.ranker import Ranker
from ranking.freshness import Ages, MaxAges, sampled_positions
from ranking.requests import RequestReader, Requests
from ranking.retrieval.retriever import Retriever
from ranking.types import (
    Candidates,
    Covisits,
    DoubleArray,
    FloatArray,
    Histories,
    Items,
    Query,
    Ranking,
    RowArray,
    ServedFeatures,
)

ItemFeatures = Callable[[Items, RowArray, DoubleArray], FloatArray]
"""Encoded features (B, C, Fi) of candidate rows (B, C) as of moments (B,)."""

CovisitsOf = Callable[[Items, Histories], Covisits]
"""What users came to after the latest item of each history, as of its moment."""

BuildInputs = Callable[
    [Candidates, Histories, FloatArray, FloatArray, FloatArray, Items, Covisits | None],
    dict[str, NDArray[Any]],
]
"""The signature of :func:`ranking.fine.inputs.ranker_inputs`."""


# Candidates of a sampled answer whose features are kept.
_SAMPLED = 50


class PipelineConfig(BaseModel):
    """Limits of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    history_limit: int = Field(
        default=200, ge=1, description="Latest events of a user that are used."
    )


class Laps:
    """Times of consecutive stages, without a gap between them."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._last = time.perf_counter()

    def end(self, stage: str) -> None:
        """End a stage; the next one begins at the same instant."""
        now = time.perf_counter()
        self.ms[stage] = (now - self._last) * 1e3
        self._last = now


def release_features(items: Items, rows: RowArray, now: DoubleArray) -> FloatArray:
    """Return item features as of the release, whatever the moment; see :data:`ItemFeatures`."""
    return items.features[rows]


class Pipeline:
    """Ranks items for batches of requests. One thread at a time.

    Parameters
    ----------
    release : str
        Id that answers carry.
    catalogue : LiveCatalogue
        May be changed by another thread at any time.
    retriever : Retriever
    ranker : Ranker
    build_inputs : callable
        Makes the ranker's inputs; see :data:`BuildInputs`.
    config : PipelineConfig
    item_features : callable
        Where item features come from; evaluation hands in values as of each request.
    max_ages : MaxAges
        How old features may be.
    covisits : callable or None
        Where co-visits come from; None takes the release's.
    """

    def __init__(
        self,
        release: str,
        catalogue: LiveCatalogue,
        retriever: Retriever,
        ranker: Ranker,
        build_inputs: BuildInputs,
        config: PipelineConfig | None = None,
        item_features: ItemFeatures = release_features,
        max_ages: MaxAges | None = None,
        covisits: CovisitsOf | None = None,
    ) -> None:
        self.release = release
        self.catalogue = catalogue
        self.index = retriever.index
        self.config = config or PipelineConfig()
        self.retriever = retriever
        self._ranker = ranker
        self._build_inputs = build_inputs
        self._item_features = item_features
        self._covisits = covisits
        self.max_ages = max_ages or MaxAges()

    def recommend(self, queries: Sequence[Query], states: Sequence[UserState]) -> list[Ranking]:
        """Answer a batch of requests.

        Parameters
        ----------
        queries, states : sequences of length B
            The state of each query's user, read at the moment of the request.

        Returns
        -------
        list of Ranking
            In the order of the queries; what one gets does not depend on the others.
        """
        if not queries:
            return []
        laps = Laps()
        items = self.catalogue.items
        requests = self._read(queries, states, items)
        limits = np.array([max(query.count, self.retriever.config.candidates) for query in queries])
        candidates = self.retriever.retrieve(requests.histories, requests.filters, limits, items)
        candidates = with_pins(candidates, requests.pins, items)
        laps.end("retrieve")

        ages = Ages.of(
            requests.histories.now,
            items.features_as_of,
            self.catalogue.release_as_of,
            self.max_ages,
        )
        inputs, cross = self._inputs(requests, candidates, items, ages)
        laps.end("features")

        scores = self._ranker.score(inputs) if inputs else candidates.coarse_scores
        # The ranker never saw an empty history in training: the order of trending stays.
        scores = np.where(requests.cold[:, None], candidates.coarse_scores, scores)
        laps.end("rank")

        ranked = Ranked(candidates, scores, requests, items)
        rankings = [answer(ranked, b, query, self.catalogue) for b, query in enumerate(queries)]
        laps.end("rerank")
        for b, (query, ranking) in enumerate(zip(queries, rankings, strict=True)):
            ranking.release = self.release
            ranking.timing_ms = dict(laps.ms)
            used = bool(inputs) and not requests.cold[b]
            ages.describe(ranking, b, query.now, self.max_ages, used)
            if query.sampled and used and not ages.item_expired[b]:
                ranking.served = self._served(
                    ranking, states[b], candidates.rows[b], cross[b], items
                )
        return rankings

    def with_item_features(
        self, item_features: ItemFeatures, covisits: CovisitsOf | None = None
    ) -> Pipeline:
        """Return a pipeline of the same parts that takes features of items from elsewhere."""
        return Pipeline(
            self.release,
            self.catalogue,
            self.retriever,
            self._ranker,
            self._build_inputs,
            self.config,
            item_features,
            covisits=covisits,
        )

    def retrieve(
        self, queries: Sequence[Query], states: Sequence[UserState], limit: int | None = None
    ) -> Candidates:
        """Return only the coarse stage's candidates, `limit` a request."""
        items = self.catalogue.items
        requests = self._read(queries, states, items)
        return self.retriever.retrieve(requests.histories, requests.filters, limit, items)

    def similar(self, item_id: str, count: int, now: float) -> Ranking:
        """Return available items that go with an item or are close to it.

        Parameters
        ----------
        item_id : str
            External id.
        count : int
            Items wanted, at least 1.
        now : float
            Unix seconds.

        Raises
        ------
        InputError
            If the catalogue has no such item.
        """
        laps = Laps()
        items = self.catalogue.items
        row = self.catalogue.row(item_id)
        if not 0 <= row < len(items):
            raise InputError(f"item {item_id[:64]!r} is not in the catalogue")
        candidates = self.retriever.similar(row, count, now, items)
        laps.end("retrieve")
        query = Query(user_id="", count=count, now=now)
        ranked = Ranked(candidates, candidates.coarse_scores, None, items)
        ranking = answer(ranked, 0, query, self.catalogue)
        laps.end("rerank")
        ranking.release = self.release
        ranking.timing_ms = laps.ms
        return ranking

    def _read(
        self, queries: Sequence[Query], states: Sequence[UserState], items: Items
    ) -> Requests:
        reader = RequestReader(self.catalogue, items, self.config.history_limit)
        return reader.read(queries, states)

    def _inputs(
        self, requests: Requests, candidates: Candidates, items: Items, ages: Ages
    ) -> tuple[dict[str, NDArray[Any]], FloatArray]:
        """Return all inputs of the ranker, none where it has nothing to rank, and cross features.

        The latter are (B, C, Fx), empty where there are no inputs.
        """
        rows = candidates.rows
        if not rows.shape[1] or requests.cold.all():
            return {}, np.empty((0, 0, 0), np.float32)
        cross = encode_cross(
            requests.category_events, requests.category_value_sums, items.categories, rows
        )
        features = self._item_features(items, rows, requests.histories.now)
        inputs = self._build_inputs(
            candidates,
            requests.histories,
            requests.users,
            ages.fresh_items(features),
            cross,
            items,
            self._covisits(items, requests.histories) if self._covisits else None,
        )
        return ages.fresh_pairs(inputs), cross

    def _served(
        self,
        ranking: Ranking,
        state: UserState,
        rows: RowArray,
        cross: FloatArray,
        items: Items,
    ) -> ServedFeatures | None:
        """Return the features of some candidates (C,) of one request, None where not kept."""
        if items.raw_features is None:
            return None
        places = sampled_positions(rows, [item.row for item in ranking.items], _SAMPLED)
        return ServedFeatures(
            item_keys=self.catalogue.keys(rows[places]),
            user=state.features,
            items=items.raw_features[rows[places]],
            cross=cross[places],
            item_as_of=items.features_as_of,
            item_snapshot=items.features_snapshot,
        )
