"""Baselines that the cascade is compared with, given the same events and the same seen filter.

Each one scores the whole catalogue for a batch of users from the training events alone; where
its own evidence says nothing, popularity decides. :mod:`ranking.evaluation.tuning` picks their
settings.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy import sparse

from ranking.evaluation.events import TrainingEvents
from ranking.retrieval.covisitation import damped_weights
from ranking.types import DAY, BoolArray, DoubleArray, FloatArray, RowArray


class Baseline(Protocol):
    """A model that scores the whole catalogue."""

    def scores(self, users: RowArray, as_of: DoubleArray) -> FloatArray:
        """Return scores (B, N) for `users` (B,) at `as_of` (B,) unix seconds."""
        ...


class Popularity:
    """The same list for everyone: items by their number of training events."""

    def __init__(self, events: TrainingEvents) -> None:
        self._scores = _order_score(events.counts())

    def scores(self, users: RowArray, as_of: DoubleArray) -> FloatArray:
        """Return (B, N); equal counts rank in row order."""
        return np.broadcast_to(self._scores, (len(users), len(self._scores)))


class RecentPopularity:
    """Items by their training events in the `window_days` before the moment of the query."""

    def __init__(self, events: TrainingEvents, window_days: float) -> None:
        order = np.argsort(events.times, kind="stable")
        self._times, self._rows = events.times[order], events.rows[order]
        self._fallback = _order_score(events.counts())
        self._window = window_days * DAY

    def scores(self, users: RowArray, as_of: DoubleArray) -> FloatArray:
        """Return (B, N): counts in the window, then all-time popularity."""
        out = np.empty((len(users), len(self._fallback)), dtype=np.float32)
        counts = np.zeros(len(self._fallback), dtype=np.int64)
        low = high = 0
        for query in np.argsort(as_of, kind="stable"):
            start, stop = np.searchsorted(
                self._times, [as_of[query] - self._window, as_of[query]], side="left"
            )
            counts += np.bincount(self._rows[high:stop], minlength=len(counts))
            counts -= np.bincount(self._rows[low:start], minlength=len(counts))
            low, high = int(start), int(stop)
            out[query] = counts
        return out + self._fallback


class ItemToItem:
    """Co-visitation: neighbours of the user's latest items, newer items weighing more.

    The weights of :mod:`ranking.retrieval.covisitation`, all of them where the source of the
    cascade keeps the strongest of each item. The latest item weighs 1, the one before it
    `decay`, and so on over `latest` items.
    """

    def __init__(
        self,
        events: TrainingEvents,
        reach: int = 12,
        backward: float = 0.2,
        damping: float = 0.3,
        decay: float = 0.6,
        latest: int = 20,
    ) -> None:
        self._events = events
        self._weights = decay ** np.arange(latest)
        items, candidates, scores = damped_weights(events, reach, backward, damping)
        self._similar = sparse.csr_matrix(
            (scores.astype(np.float32), (items, candidates)), shape=(events.items, events.items)
        )
        self._fallback = _order_score(events.counts())

    def scores(self, users: RowArray, as_of: DoubleArray) -> FloatArray:
        """Return (B, N)."""
        found = (self._events.recent(users, self._weights) @ self._similar).toarray()
        return np.where(found > 0, found + 1.0, self._fallback).astype(np.float32)


class Ease:
    """EASE (Steck 2019, https://arxiv.org/abs/1905.03375) applied to the latest items.

    Solved in whichever of items and users are fewer: with ``P = (XᵀX + λI)⁻¹``, the weights are
    ``B = I - P / diag(P)`` column by column, and by the Woodbury identity
    ``λP = I - Xᵀ(XXᵀ + λI)⁻¹X``.
    """

    def __init__(
        self, events: TrainingEvents, regularisation: float = 200.0, latest: int | None = 20
    ) -> None:
        x = events.matrix()
        self._events = events
        self._latest = latest if latest is not None else int(np.diff(events.offsets).max())
        self._primal = x.shape[1] <= x.shape[0]
        gram = (x.T @ x if self._primal else x @ x.T).toarray().astype(np.float64)
        gram[np.diag_indices_from(gram)] += regularisation
        inverse = np.linalg.inv(gram)
        if self._primal:
            weights = inverse / -np.diag(inverse)
            np.fill_diagonal(weights, 0.0)
            self._weights = weights.astype(np.float32)
        else:
            self._x, self._inverse = x, inverse.astype(np.float32)
            reached = x.T @ inverse  # (N, V)
            self._diagonal = 1.0 - np.asarray(x.T.multiply(reached).sum(axis=1)).ravel()

    def scores(self, users: RowArray, as_of: DoubleArray) -> FloatArray:
        """Return (B, N); the scores of items in the history are meaningless."""
        recent = self._events.recent(users, np.ones(self._latest))
        recent.data[:] = 1.0
        if self._primal:
            return np.asarray(recent @ self._weights, dtype=np.float32)
        shared = (recent @ self._x.T) @ self._inverse  # (B, V)
        reached = (self._x.T @ shared.T).T  # (B, N)
        return np.asarray(
            recent.toarray() - (recent.toarray() - reached) / self._diagonal, dtype=np.float32
        )


def rank(
    baseline: Baseline,
    events: TrainingEvents,
    users: RowArray,
    as_of: DoubleArray,
    k: int,
    allowed: BoolArray | None = None,
    created: DoubleArray | None = None,
    batch: int = 256,
) -> RowArray:
    """Return each user's best `k` items that are not in the user's training events, (U, k).

    Parameters
    ----------
    baseline : Baseline
    events : TrainingEvents
    users : (U,) int64
        Positions in ``events.offsets``.
    as_of : (U,) float64
        Unix seconds.
    k : int
        Length of the lists; padded by -1 where the catalogue has fewer unseen items.
    allowed : (N,) bool, optional
        Items that may be returned.
    created : (N,) float64, optional
        Unix seconds; an item is not returned for a moment before it came to be.
    batch : int
        Users scored at a time; a batch of 256 over 10,000 items holds 10 MB.
    """
    out = np.full((len(users), k), -1, dtype=np.int64)
    for start in range(0, len(users), batch):
        part, moments = users[start : start + batch], as_of[start : start + batch]
        scores = np.array(baseline.scores(part, moments), dtype=np.float32)
        if allowed is not None:
            scores[:, ~allowed] = -np.inf
        if created is not None:
            scores[created[None, :] > moments[:, None]] = -np.inf
        scores[events.recent(part, np.ones(_longest(events, part))).nonzero()] = -np.inf
        width = min(k, events.items)
        best = top_rows(scores, width)
        out[start : start + batch, :width] = np.where(
            np.take_along_axis(scores, best, axis=1) > -np.inf, best, -1
        )
    return out


def top_rows(scores: FloatArray, k: int) -> RowArray:
    """Return the columns of the `k` best scores of each row, best first, ties by column."""
    if k < scores.shape[1]:
        best = np.sort(np.argpartition(-scores, k - 1, axis=1)[:, :k], axis=1)
    else:
        best = np.tile(np.arange(scores.shape[1]), (len(scores), 1))
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1).astype(np.int64)


def _longest(events: TrainingEvents, users: RowArray) -> int:
    return int((events.offsets[users + 1] - events.offsets[users]).max(initial=0))


def _order_score(counts: RowArray) -> FloatArray:
    """Return distinct scores in (0, 1) that rank by count, ties by row, (N,)."""
    order = np.argsort(-counts, kind="stable")
    scores = np.empty(len(counts), dtype=np.float32)
    scores[order] = 1.0 - (np.arange(len(counts), dtype=np.float64) + 1) / (len(counts) + 1)
    return scores
