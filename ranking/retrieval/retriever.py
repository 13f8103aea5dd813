"""The coarse stage: user vector, candidate sources, filters, one merged list.

A list is never short while eligible items exist. The ANN source is searched without filters and
wider than needed; where that leaves fewer than asked for, it is searched again inside the
request's mask, and the index answers that exactly if it must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from features.errors import ConfigError, InputError
from ranking.retrieval.exact import Index, finite, padded
from ranking.retrieval.filters import Filters, eligible
from ranking.retrieval.fusion import Ask, fuse, no_candidates
from ranking.retrieval.index import IndexConfig, build_index
from ranking.retrieval.sources import (
    AnnSource,
    EaseSource,
    ItemToItemSource,
    NewItemsSource,
    Source,
    SourceBatch,
    TrendingSource,
)
from ranking.types import BoolArray, Candidates, FloatArray, Histories, Items, RowArray

UserTower = Callable[[Histories, FloatArray], FloatArray]
"""Histories of B users and item vectors (N, d) to user vectors (B, d)."""

# Without a history nothing is known of the user: trending leads, the others only fill up.
_COLD_WEIGHT = 1e-3

# Rows around an item that are ordered by cosine for `similar`.
_COSINE_POOL = 300

MOST_CANDIDATES = 100_000
"""A request may ask for this many: what :mod:`ranking.retrieval.merge` can tell apart."""


class RetrievalConfig(BaseModel):
    """How many candidates come from where, and how the lists become one.

    The defaults were tuned on the sample's last but one events (docs/quality-log.md).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: int = Field(
        default=300, ge=1, description="Candidates a request, unless it asks for more items."
    )
    quotas: dict[str, int] = Field(
        default={"item_to_item": 40, "ease": 40, "trending": 40, "new_items": 20},
        description="Most eligible items taken from each source; ANN fills the rest.",
    )
    weights: dict[str, float] = Field(
        default={"ann": 1.0, "item_to_item": 1.0, "ease": 0.2, "trending": 0.2, "new_items": 0.2},
        description="Weight of each source in the fusion.",
    )
    rank_constant: float = Field(
        default=20.0, ge=0, description="Ranks; the larger, the flatter the fusion."
    )
    latest_items: int = Field(
        default=10, ge=1, description="Latest items whose neighbours are taken."
    )
    neighbours: int = Field(default=40, ge=1, description="Neighbours taken of each.")
    recency_decay: float = Field(
        default=0.8, gt=0, le=1, description="Weight ratio of a history item and its successor."
    )
    new_item_days: float = Field(default=30.0, gt=0, description="Days an item counts as new.")
    index: IndexConfig = Field(default=IndexConfig(), description="The index of item vectors.")


class Retriever:
    """Finds the candidates of a batch of requests. One thread at a time.

    Parameters
    ----------
    user_tower : callable
        See :data:`UserTower`.
    items : Items
        The catalogue, unless a call brings a newer state of it.
    config : RetrievalConfig
    index : Index or None
        Over ``items.vectors``; None builds the one that the config asks for.
    more_sources : sequence of Source
        Sources beside the four of Shortlist, with a quota and a weight in the config.

    Raises
    ------
    ConfigError
        If quotas or weights do not name the sources.
    """

    def __init__(
        self,
        user_tower: UserTower,
        items: Items,
        config: RetrievalConfig | None = None,
        index: Index | None = None,
        more_sources: Sequence[Source] = (),
    ) -> None:
        self.config = config = config or RetrievalConfig()
        self.items = items
        self.index = index if index is not None else build_index(items.vectors, config.index)
        self._user_tower = user_tower
        self._sources: tuple[Source, ...] = (
            AnnSource(self.index),
            ItemToItemSource(config.latest_items, config.neighbours, config.recency_decay),
            EaseSource(),
            TrendingSource(),
            NewItemsSource(config.new_item_days),
            *more_sources,
        )
        self.source_names = tuple(source.name for source in self._sources)
        for key, wanted, given in (
            ("weights", set(self.source_names), set(config.weights)),
            ("quotas", set(self.source_names) - {AnnSource.name}, set(config.quotas)),
        ):
            if wanted != given:
                raise ConfigError(
                    f"retrieval.{key} must name exactly {sorted(wanted)}, got {sorted(given)}"
                )
        self._item_to_item = self.source_names.index(ItemToItemSource.name)
        self._trending = self.source_names.index(TrendingSource.name)
        self._quotas = [0, *(config.quotas[name] for name in self.source_names[1:])]
        self._weights = np.array([config.weights[name] for name in self.source_names], np.float32)
        self._scratch = np.zeros(0, np.uint8)
        self._available = np.zeros(0, np.bool_)
        self._available_share = 1.0

    def retrieve(
        self,
        histories: Histories,
        filters: Filters | None = None,
        limit: int | RowArray | None = None,
        items: Items | None = None,
    ) -> Candidates:
        """Return the `limit` best candidates of each request, fewer only if no more are eligible.

        Parameters
        ----------
        histories : Histories
            Of B users; a length of 0 is a cold start, led by trending items.
        filters : Filters or None
            None removes nothing but unavailable items.
        limit : int or (B,) int64 or None
            Candidates of each request; None takes ``config.candidates``.
        items : Items or None
            State of the catalogue; rows beyond the index's are added to it first.
        """
        items = self._current(items)
        B = len(histories.lengths)
        if not len(items) or not B:
            return no_candidates(B, items.vectors.shape[1], self.source_names)
        vectors = finite(self._user_tower(histories, items.vectors))
        limits = np.full(B, self.config.candidates if limit is None else limit, np.int64)
        if limits.max() > MOST_CANDIDATES:
            raise InputError(
                f"{limits.max()} candidates were asked for, at most {MOST_CANDIDATES} are possible"
            )
        cold = histories.lengths == 0
        quotas = np.array([self._quotas] * B, np.int64)
        quotas[:, 0] = limits
        quotas[cold, self._trending] = limits[cold]
        weights = np.array([self._weights] * B)
        weights[cold] *= np.where(np.arange(weights.shape[1]) == self._trending, 1, _COLD_WEIGHT)
        batch = SourceBatch(histories, vectors, items)
        ask = Ask(batch, filters or Filters.none(B), limits, quotas, weights)
        return self._merge(self._search(ask), ask)

    def similar(self, row: int, limit: int, now: float, items: Items | None = None) -> Candidates:
        """Return the candidates (1, C) that go with an item, or whose vectors are close to it.

        Parameters
        ----------
        row : int
            Row of the item, which is not returned itself.
        limit : int
            Candidates wanted; fewer only if no more are available.
        now : float
            Unix seconds.
        items : Items or None
            See :meth:`retrieve`.
        """
        items = self._current(items)
        histories = Histories(
            rows=np.array([[row]], np.int64),
            values=np.full((1, 1), np.nan, np.float32),
            times=np.full((1, 1), now),
            lengths=np.ones(1, np.int64),
            now=np.full(1, now),
        )
        quotas = np.zeros((1, len(self._sources)), np.int64)
        quotas[0, [0, self._item_to_item]] = limit
        batch = SourceBatch(histories, finite(items.vectors[row : row + 1]), items)
        itself = Filters([histories.rows[0]], [np.empty(0, np.int64)], [None])
        # The configured weights are those of what users choose next, not of likeness.
        equal = np.ones(quotas.shape, np.float32)
        ask = Ask(batch, itself, quotas[:, 0], quotas, equal)
        found = self._search(ask)
        found[0] = self._by_cosine(batch.user_vectors, max(_COSINE_POOL, 4 * limit), items)
        return self._merge(found, ask)

    def _by_cosine(self, vector: FloatArray, k: int, items: Items) -> tuple[RowArray, FloatArray]:
        """Return the k rows of highest inner product with one vector, ordered by cosine.

        Long vectors are those of popular items, which are close to everything by inner product.
        """
        _, rows = self.index.search(vector, min(k, len(items)))
        near = items.vectors[rows[0]]
        length = np.linalg.norm(near, axis=1) * np.linalg.norm(vector)
        cosine = (near @ vector[0]) / np.maximum(length, 1e-12)
        cosine = np.where(rows[0] >= 0, cosine, -np.inf).astype(np.float32)
        order = np.argsort(-cosine, kind="stable")
        return rows[:, order], cosine[None, order]

    def _merge(self, found: list[tuple[RowArray, FloatArray]], ask: Ask) -> Candidates:
        merged = self._fuse(found, ask)
        return self._fuse(found, ask) if self._fill(found, merged, ask) else merged

    def _fuse(self, found: list[tuple[RowArray, FloatArray]], ask: Ask) -> Candidates:
        return fuse(found, ask, self.source_names, self.config.rank_constant, self._scratch)

    def _current(self, items: Items | None) -> Items:
        items = items or self.items
        if len(items) > self.index.ntotal:
            self.index.extend(items.vectors)
        if len(items) > len(self._scratch):
            self._scratch = np.zeros(len(items), np.uint8)
        if items.available is not self._available and len(items):
            self._available = items.available
            # Beyond 4 to 1 a search inside the mask is cheaper than a wider one.
            self._available_share = max(float(np.mean(items.available)), 0.25)
        return items

    def _search(self, ask: Ask) -> list[tuple[RowArray, FloatArray]]:
        """Ask every source, wider than the quotas, since the filters will take some."""
        B = len(ask.limits)
        widths = ask.quotas * 2
        seen = np.array([len(rows) for rows in ask.filters.seen])
        widths[:, 0] = ask.limits + np.minimum(seen, ask.limits)
        widths = (widths / self._available_share).astype(np.int64)
        np.minimum(widths, len(ask.batch.items), out=widths)
        found = []
        for source, width in zip(self._sources, widths.T, strict=True):
            k = int(width.max())
            rows, scores = source.retrieve(ask.batch, k) if k else padded(B, 0)[::-1]
            if int(width.min()) < k:
                # What a request gets must not depend on who else is in its batch.
                beyond = np.arange(k) >= width[:, None]
                rows[beyond], scores[beyond] = -1, -np.inf
            found.append((rows, scores))
        for b, columns in enumerate(ask.filters.categories):
            if columns is not None:
                mask = eligible(ask.batch.items, ask.filters, ask.batch.histories.now, b)
                self._search_inside(found[0], ask, mask, b)
        return found

    def _search_inside(
        self, ann: tuple[RowArray, FloatArray], ask: Ask, mask: BoolArray, b: int
    ) -> None:
        """Replace the ANN list of request `b` by one searched inside its mask."""
        rows, scores = ann
        k = min(int(ask.limits[b]), len(ask.batch.items))
        score, row = self.index.search(ask.batch.user_vectors[b : b + 1], k, mask)
        rows[b], scores[b] = -1, -np.inf
        rows[b, :k], scores[b, :k] = row[0], score[0]

    def _fill(self, found: list[tuple[RowArray, FloatArray]], merged: Candidates, ask: Ask) -> bool:
        """Search again inside the mask of each request that is short of eligible items."""
        kept = (merged.rows >= 0).sum(axis=1)
        wanted = np.minimum(ask.limits, len(ask.batch.items))
        filled = False
        for b in np.flatnonzero(kept < wanted).tolist():
            mask = eligible(ask.batch.items, ask.filters, ask.batch.histories.now, b)
            if kept[b] < min(wanted[b], np.count_nonzero(mask)):
                self._search_inside(found[0], ask, mask, b)
                filled = True
        return filled
