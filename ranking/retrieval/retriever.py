"""The coarse stage: user vector, candidate sources, filters, one merged list.

The order of the merged list is weighted reciprocal-rank fusion: with ``r_s(i)`` the 1-based rank
of item i among the eligible items of source s,

    score(i) = sum over s of  weight_s / (rank_constant + r_s(i))

after Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual
rank learning methods", SIGIR 2009, who use weights of 1 and a constant of 60. Ranks are taken
after the filters, so that a user who has seen much is not punished by it.

A list is never short while eligible items exist. The ANN source is searched without filters and
wider than needed; where that leaves fewer than asked for, it is searched again inside the
request's mask, and the index answers that exactly if it must.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from features.errors import ConfigError
from ranking.retrieval.exact import Index
from ranking.retrieval.filters import SURPLUS, Filters, eligible, reasons
from ranking.retrieval.index import IndexConfig, build_index
from ranking.retrieval.merge import best, group
from ranking.retrieval.sources import (
    AnnSource,
    ItemToItemSource,
    NewItemsSource,
    Source,
    SourceBatch,
    TrendingSource,
)
from ranking.types import (
    DROP_REASONS,
    BoolArray,
    Candidates,
    FloatArray,
    Histories,
    Items,
    RowArray,
)

UserTower = Callable[[Histories, FloatArray], FloatArray]
"""Histories of B users and item vectors (N, d) to user vectors (B, d)."""

# Without a history the tower knows nothing of the user: trending leads, ANN only fills up.
_COLD_WEIGHT = 1e-3


class RetrievalConfig(BaseModel):
    """How many candidates come from where, and how the lists become one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: int = Field(
        default=300, ge=1, description="Candidates a request, unless it asks for more items."
    )
    quotas: dict[str, int] = Field(
        default={"item_to_item": 80, "trending": 40, "new_items": 20},
        description="Most eligible items taken from each source; ANN fills the rest.",
    )
    weights: dict[str, float] = Field(
        default={"ann": 1.0, "item_to_item": 0.5, "trending": 0.2, "new_items": 0.2},
        description="Weight of each source in the fusion.",
    )
    rank_constant: float = Field(
        default=60.0, ge=0, description="Ranks; the larger, the flatter the fusion."
    )
    latest_items: int = Field(
        default=10, ge=1, description="Latest items whose neighbours are taken."
    )
    neighbours: int = Field(default=40, ge=1, description="Neighbours taken of each.")
    recency_decay: float = Field(
        default=0.85, gt=0, le=1, description="Weight ratio of a history item and its successor."
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
            TrendingSource(),
            NewItemsSource(config.new_item_days),
            *more_sources,
        )
        self.source_names = tuple(source.name for source in self._sources)
        for key, wanted, given in (
            ("weights", set(self.source_names), set(config.weights)),
            ("quotas", set(self.source_names) - {"ann"}, set(config.quotas)),
        ):
            if wanted != given:
                raise ConfigError(
                    f"retrieval.{key} must name exactly {sorted(wanted)}, got {sorted(given)}"
                )
        self._trending = self.source_names.index(TrendingSource.name)
        self._quotas = [config.quotas.get(name, 0) for name in self.source_names]
        self._weights = np.array([config.weights[name] for name in self.source_names], np.float32)
        self._scratch = np.zeros(0, np.uint8)
        self._available = np.zeros(0, np.bool_)
        self._available_share = 1.0

    def retrieve(
        self,
        histories: Histories,
        filters: Filters | None = None,
        limit: int | None = None,
        items: Items | None = None,
    ) -> Candidates:
        """Return the `limit` best candidates of each request, fewer only if no more are eligible.

        Parameters
        ----------
        histories : Histories
            Of B users; a length of 0 is a cold start, led by trending items.
        filters : Filters or None
            None removes nothing but unavailable items.
        limit : int or None
            Candidates a request; None takes ``config.candidates``.
        items : Items or None
            State of the catalogue; rows beyond the index's are added to it first.
        """
        items = self._current(items)
        B = len(histories.lengths)
        filters = filters or Filters.none(B)
        limit = limit or self.config.candidates
        if not len(items):
            return _no_candidates(B, items.vectors.shape[1], self.source_names)
        vectors = np.nan_to_num(self._user_tower(histories, items.vectors))
        batch = SourceBatch(histories, vectors, items)
        cold = histories.lengths == 0
        found = self._search(batch, filters, limit, cold)
        merged = self._merge(found, batch, filters, limit, cold)
        if self._fill(found, merged, batch, filters, limit):
            merged = self._merge(found, batch, filters, limit, cold)
        return merged

    def _current(self, items: Items | None) -> Items:
        items = items or self.items
        if len(items) > self.index.ntotal:
            self.index.add(items.vectors[self.index.ntotal :])
        if len(items) > len(self._scratch):
            self._scratch = np.zeros(len(items), np.uint8)
        if items.available is not self._available and len(items):
            self._available = items.available
            # Beyond 4 to 1 a search inside the mask is cheaper than a wider one.
            self._available_share = max(float(np.mean(items.available)), 0.25)
        return items

    def _search(
        self, batch: SourceBatch, filters: Filters, limit: int, cold: BoolArray
    ) -> list[tuple[RowArray, FloatArray]]:
        widths = self._widths(batch, filters, limit, cold)
        found = []
        for source, width in zip(self._sources, widths.T, strict=True):
            k = int(width.max(initial=0))
            rows, scores = source.retrieve(batch, k)
            # What a request gets must not depend on who else is in its batch.
            beyond = np.arange(k) >= width[:, None]
            rows[beyond], scores[beyond] = -1, -np.inf
            found.append((rows, scores))
        for b, columns in enumerate(filters.categories):
            if columns is not None:
                mask = eligible(batch.items, filters, batch.histories.now, b)
                self._search_inside(*found[0], batch, mask, limit, b)
        return found

    def _widths(
        self, batch: SourceBatch, filters: Filters, limit: int, cold: BoolArray
    ) -> RowArray:
        """Return how many rows each request asks of each source; (B, S)."""
        wide = [[limit + min(len(seen), limit), *self._quotas[1:]] for seen in filters.seen]
        widths = np.array(wide, np.int64).reshape(len(cold), len(self._sources))
        widths[:, 1:] *= 2  # filters take some
        widths[cold, self._trending] = 2 * limit
        return np.minimum((widths / self._available_share).astype(np.int64), len(batch.items))

    def _search_inside(
        self,
        rows: RowArray,
        scores: FloatArray,
        batch: SourceBatch,
        mask: BoolArray,
        limit: int,
        b: int,
    ) -> None:
        """Replace the ANN list of request `b` by one searched inside its mask."""
        k = min(limit, len(batch.items))
        score, row = self.index.search(batch.user_vectors[b : b + 1], k, mask)
        rows[b], scores[b] = -1, -np.inf
        rows[b, :k], scores[b, :k] = row[0], score[0]

    def _fill(
        self,
        found: list[tuple[RowArray, FloatArray]],
        merged: Candidates,
        batch: SourceBatch,
        filters: Filters,
        limit: int,
    ) -> bool:
        """Search again inside the mask of each request that is short of eligible items."""
        kept = (merged.rows >= 0).sum(axis=1)
        filled = False
        for b in np.flatnonzero(kept < min(limit, len(batch.items))):
            mask = eligible(batch.items, filters, batch.histories.now, int(b))
            if kept[b] < min(limit, np.count_nonzero(mask)):
                self._search_inside(*found[0], batch, mask, limit, int(b))
                filled = True
        return filled

    def _merge(
        self,
        found: list[tuple[RowArray, FloatArray]],
        batch: SourceBatch,
        filters: Filters,
        limit: int,
        cold: BoolArray,
    ) -> Candidates:
        items = batch.items
        rows = np.concatenate([rows for rows, _ in found], axis=1)  # (B, K)
        scores = np.concatenate([scores for _, scores in found], axis=1)
        B, K = rows.shape
        S = len(found)
        widths = [source_rows.shape[1] for source_rows, _ in found]
        source = np.repeat(np.arange(S), widths)  # (K,)
        starts = np.cumsum([0, *widths])

        why = reasons(rows, items, filters, batch.histories.now, self._scratch)
        ok = (why == 0) & (rows >= 0)
        before = np.zeros((B, K + 1), np.int64)  # eligible rows in front of each place
        np.cumsum(ok, axis=1, out=before[:, 1:])
        rank = before[:, :K] - before[:, starts[:-1]][:, source]
        quotas = np.tile([limit, *self._quotas[1:]], (B, 1))
        quotas[cold, self._trending] = limit
        taken = rank < quotas[:, source]
        rows = np.where(taken, rows, -1)
        weights = np.tile(self._weights, (B, 1))
        weights[cold, 0] *= _COLD_WEIGHT
        share = weights[:, source] / (self.config.rank_constant + 1 + rank)

        groups = group(rows)
        U = groups.rows.shape[1]
        fused = groups.sum(np.where(ok, share, 0))  # (B, U), 0 where not eligible
        kept = np.minimum((fused > 0).sum(axis=1), limit)
        top = best(fused, int(kept.max(initial=0)))
        C = top.shape[1]
        real = np.arange(C) < kept[:, None]
        out = np.where(real, np.take_along_axis(groups.rows, top, 1), -1)

        source_ranks = np.full((B, U, S), -1, np.int32)
        source_scores = np.full((B, U, S), np.nan, np.float32)
        cell = groups.slot * S + source[groups.entry % K]
        source_ranks.ravel()[cell] = rank.ravel()[groups.entry]
        source_scores.ravel()[cell] = scores.ravel()[groups.entry]
        request = np.arange(B)[:, None]
        source_ranks = source_ranks[request, top]
        source_scores = source_scores[request, top]
        source_ranks[~real] = -1
        source_scores[~real] = np.nan

        reason = np.zeros((B, U), np.uint8)
        reason.ravel()[groups.slot] = why.ravel()[groups.entry]
        vectors = items.vectors[out]  # (B, C, d)
        ann = np.matmul(vectors, batch.user_vectors[:, :, None])[:, :, 0]
        return Candidates(
            rows=out,
            vectors=vectors,
            coarse_scores=np.where(real, np.take_along_axis(fused, top, 1), -np.inf),
            ann_scores=ann,
            source_scores=source_scores,
            source_ranks=source_ranks,
            user_vectors=batch.user_vectors,
            sources=self.source_names,
            dropped=_dropped(reason, groups.rows, kept),
        )


def _no_candidates(B: int, d: int, sources: tuple[str, ...]) -> Candidates:
    return Candidates(
        rows=np.empty((B, 0), np.int64),
        vectors=np.empty((B, 0, d), np.float32),
        coarse_scores=np.empty((B, 0), np.float32),
        ann_scores=np.empty((B, 0), np.float32),
        source_scores=np.empty((B, 0, len(sources)), np.float32),
        source_ranks=np.empty((B, 0, len(sources)), np.int32),
        user_vectors=np.zeros((B, d), np.float32),
        sources=sources,
        dropped=[dict.fromkeys(DROP_REASONS, 0) for _ in range(B)],
    )


def _dropped(reason: NDArray[np.uint8], rows: RowArray, kept: RowArray) -> list[dict[str, int]]:
    """Count what was removed from each request, by reason."""
    B = len(rows)
    size = SURPLUS + 1
    places = np.where(rows >= 0, reason, size - 1) + np.arange(B)[:, None] * size
    counts = np.bincount(places.ravel(), minlength=B * size).reshape(B, size)
    counts[:, SURPLUS] = counts[:, 0] - kept
    return [dict(zip(DROP_REASONS, row[1:], strict=True)) for row in counts.tolist()]
