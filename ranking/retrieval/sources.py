"""Where candidates come from.

A source is a small class: a name and one method. It returns for each request of a batch its best
rows, each at most once, without filters; the retriever merges, filters and counts them. To add
one, write a class with this protocol, hand it to :class:`ranking.retrieval.retriever.Retriever`
and give its name a quota and a weight in :class:`~ranking.retrieval.retriever.RetrievalConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ranking.retrieval.exact import Index, padded
from ranking.retrieval.merge import best, group
from ranking.types import DAY, DoubleArray, FloatArray, Histories, Items, RowArray


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """What a source may read.

    Attributes
    ----------
    histories : Histories
        Latest events of the B users.
    user_vectors : (B, d) float32
        Output of the user tower.
    items : Items
        State of the catalogue for this batch.
    """

    histories: Histories
    user_vectors: FloatArray
    items: Items


class Source(Protocol):
    """A source of candidates; a contract test suite passes over every one."""

    name: str

    def retrieve(self, batch: SourceBatch, k: int) -> tuple[RowArray, FloatArray]:
        """Return rows (B, k) int64 and scores (B, k) float32, best first.

        Short lists are padded with row -1 and score -inf; scores are finite elsewhere.
        """


class AnnSource:
    """Items whose vectors have the highest inner product with the user's."""

    name = "ann"

    def __init__(self, index: Index) -> None:
        self.index = index

    def retrieve(self, batch: SourceBatch, k: int) -> tuple[RowArray, FloatArray]:
        """See :meth:`Source.retrieve`."""
        scores, rows = self.index.search(batch.user_vectors, k)
        return rows, scores


class ItemToItemSource:
    """Items that go with the user's latest ones.

    The score of an item is the sum of its neighbour scores over the latest items, each weighted
    by ``decay ** age`` where the latest item has age 0.

    Parameters
    ----------
    latest : int
        Number of latest items that are asked for neighbours.
    width : int
        Neighbours taken of each.
    decay : float
        Weight ratio of an item and its successor, in (0, 1].
    """

    name = "item_to_item"

    def __init__(self, latest: int = 10, width: int = 40, decay: float = 0.85) -> None:
        self._latest = latest
        self._width = width
        self._weights = (decay ** np.arange(latest)).astype(np.float32)

    def retrieve(self, batch: SourceBatch, k: int) -> tuple[RowArray, FloatArray]:
        """See :meth:`Source.retrieve`."""
        histories, items = batch.histories, batch.items
        B = len(histories.lengths)
        latest = min(self._latest, histories.rows.shape[1])
        at = histories.lengths[:, None] - 1 - np.arange(latest)  # (B, latest)
        known = at >= 0
        recent = histories.rows[np.arange(B)[:, None], np.maximum(at, 0)]
        near = items.neighbours.take(np.where(known, recent, 0), axis=0)  # (B, latest, M)
        values = items.neighbour_scores.take(np.where(known, recent, 0), axis=0)
        rows = np.where(known[..., None], near, -1)[..., : self._width].astype(np.int64)
        values = values[..., : self._width] * self._weights[:latest, None]
        groups = group(rows.reshape(B, -1))
        # A neighbour without a positive score is no recommendation.
        sums = groups.sum(values.reshape(B, -1))
        top = best(sums, k)
        out_scores, out_rows = padded(B, k)
        here = np.arange(B)[:, None]
        found, items_found = sums[here, top], groups.rows[here, top]
        keep = found > 0
        out_scores[:, : top.shape[1]] = np.where(keep, found, -np.inf)
        out_rows[:, : top.shape[1]] = np.where(keep, items_found, -1)
        return out_rows, out_scores


class EaseSource:
    """Items that go with the whole history, in no order (:mod:`ranking.retrieval.ease`).

    The score of an item is the sum of its weights over the history.
    """

    name = "ease"

    def retrieve(self, batch: SourceBatch, k: int) -> tuple[RowArray, FloatArray]:
        """See :meth:`Source.retrieve`."""
        histories, items = batch.histories, batch.items
        scores, rows = padded(len(histories.lengths), k)
        if items.ease.shape[1] == 0:
            return rows, scores
        for b, history in enumerate(histories.rows):
            held = history[history >= 0]
            groups = group(items.ease[held].reshape(1, -1).astype(np.int64))
            sums = groups.sum(items.ease_weights[held].reshape(1, -1))
            top = best(sums, k)
            rows[b, : top.shape[1]] = groups.rows[0, top]
            scores[b, : top.shape[1]] = sums[0, top]
        return rows, scores


class TrendingSource:
    """The most popular items at the time of the release, the same for everyone."""

    name = "trending"

    def retrieve(self, batch: SourceBatch, k: int) -> tuple[RowArray, FloatArray]:
        """See :meth:`Source.retrieve`."""
        scores, rows = padded(len(batch.user_vectors), k)
        keep = min(k, len(batch.items.trending))
        rows[:, :keep] = batch.items.trending[:keep]
        scores[:, :keep] = batch.items.trending_scores[:keep]
        return rows, scores


class NewItemsSource:
    """The items created last, so that what has no interactions yet can get some.

    The score falls from 1 for an item created now to 0 for one `days` old; older ones are not
    returned, nor are items created after the request's moment.

    Parameters
    ----------
    days : float
        Age in days at which an item is no longer new.
    """

    name = "new_items"

    def __init__(self, days: float = 30.0) -> None:
        self._seconds = days * DAY
        self._created: DoubleArray | None = None
        self._order: RowArray = np.empty(0, np.int64)
        self._times: DoubleArray = np.empty(0)

    def retrieve(self, batch: SourceBatch, k: int) -> tuple[RowArray, FloatArray]:
        """See :meth:`Source.retrieve`."""
        self._sort(batch.items.created)
        now = batch.histories.now[:, None]
        at = np.searchsorted(self._times, now, side="right") - 1 - np.arange(k)  # (B, k)
        if not len(self._times):
            scores, rows = padded(len(now), k)
            return rows, scores
        place = np.maximum(at, 0)
        scores = 1.0 - (now - self._times[place]) / self._seconds
        new = (at >= 0) & (scores > 0)
        rows = np.where(new, self._order[place], -1)
        return rows, np.where(new, scores, -np.inf).astype(np.float32)

    def _sort(self, created: DoubleArray) -> None:
        if created is self._created:
            return
        order = np.argsort(created, kind="stable")
        self._order = order[: len(order) - int(np.isnan(created).sum())]  # NaN sorts last
        self._times = created[self._order]
        self._created = created
