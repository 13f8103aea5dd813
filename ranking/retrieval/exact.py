"""The contract of an index of item vectors, and the exact oracle behind it.

Names follow Faiss: ``n`` queries, ``k`` results a query, highest inner product first. Faiss pads
short results with id -1, which NumPy would read as the last item; here a padded place has row -1
and score -inf, and no caller outside ``ranking/retrieval`` sees one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from features.errors import InputError
from ranking.retrieval.merge import MOST, best
from ranking.types import BoolArray, FloatArray, RowArray

_BLOCK = 8_000_000  # scores held at once: 32 MB


class Index(Protocol):
    """What retrieval asks of an index; a contract test suite passes over every kind."""

    kind: str
    dimension: int

    @property
    def ntotal(self) -> int:
        """Number of vectors."""

    def search(
        self, queries: FloatArray, k: int, allowed: BoolArray | None = None
    ) -> tuple[FloatArray, RowArray]:
        """Find the k rows of highest inner product with each query.

        Parameters
        ----------
        queries : (n, d) float32
            A query that is not finite finds nothing.
        k : int
            At least 1; more than there are is allowed.
        allowed : (ntotal,) bool or None
            Rows that may be returned.

        Returns
        -------
        scores : (n, k) float32
            Inner products, highest first, -inf where padded.
        rows : (n, k) int64
            Rows, -1 where padded.
        """

    def extend(self, vectors: FloatArray) -> None:
        """Take over the rows of `vectors` (N, d) from `ntotal` on; those before are the same.

        Not safe beside a search.
        """


class ExactIndex:
    """The oracle: every inner product, in NumPy, independent of Faiss. One thread at a time."""

    kind = "exact"

    def __init__(self, vectors: FloatArray) -> None:
        self.dimension = int(vectors.shape[1])
        self._vectors = vectors
        self._memory = np.empty((2, 0), np.float32)

    @property
    def ntotal(self) -> int:
        """Number of vectors."""
        return len(self._vectors)

    def extend(self, vectors: FloatArray) -> None:
        """See :meth:`Index.extend`."""
        self._vectors = checked(vectors, self.dimension)

    def search(
        self, queries: FloatArray, k: int, allowed: BoolArray | None = None
    ) -> tuple[FloatArray, RowArray]:
        """Find the k best rows; see :meth:`Index.search`. Equal scores: lower row first."""
        queries = checked(queries, self.dimension)
        rows = None if allowed is None else np.flatnonzero(allowed)
        vectors = self._vectors if rows is None else self._vectors[rows]
        scores, found = padded(len(queries), k)
        keep = min(k, len(vectors))
        if keep:
            # Blocks of queries bound the memory of the product.
            step = max(1, _BLOCK // len(vectors))
            for at in range(0, len(queries), step):
                part = slice(at, at + step)
                product, work = self._buffers(len(queries[part]), len(vectors))
                np.matmul(queries[part], vectors.T, out=product)
                top_scores, top = _top(product, work, keep)
                scores[part, :keep] = top_scores
                found[part, :keep] = top if rows is None else rows[top]
        blank_not_finite(queries, scores, found)
        return scores, found

    def _buffers(self, n: int, m: int) -> FloatArray:
        """Return two arrays (n, m): fresh memory for each search would cost a third of it."""
        if self._memory.shape[1] < n * m:
            self._memory = np.empty((2, n * m), np.float32)
        return self._memory[:, : n * m].reshape(2, n, m)


def _top(scores: FloatArray, work: FloatArray, k: int) -> tuple[FloatArray, RowArray]:
    """Return the k highest scores of each query and their places; equal ones: lower place.

    `work` is memory of the shape of `scores`.
    """
    n, m = scores.shape
    if k == m:
        places = best(scores, k) if m < MOST else np.argsort(-scores, axis=1, kind="stable")
        return np.take_along_axis(scores, places, 1), places
    # The k-th score by selection, then only what reaches it is sorted.
    work[:] = scores
    work.partition(m - k, axis=1)
    least = work[:, m - k, None]
    flat = np.flatnonzero(scores >= least)
    if len(flat) == n * k and k < MOST:
        values = scores.ravel()[flat].reshape(n, k)
        order = best(values, k) + np.arange(n)[:, None] * k
        places = flat[order] - np.arange(n)[:, None] * m
        return values.ravel()[order], places
    places = np.argsort(-scores, axis=1, kind="stable")[:, :k]  # ties at the k-th, or NaN
    return np.take_along_axis(scores, places, 1), places


def recall(index: Index, queries: FloatArray, k: int, exact: Index) -> float:
    """Return the mean share of the exact k best that `index` finds (k-recall@k)."""
    k = min(k, exact.ntotal)
    if not k or not len(queries):
        return 1.0
    _, found = index.search(queries, k)
    _, wanted = exact.search(queries, k)
    hits = [np.isin(w, f).mean() for w, f in zip(wanted, found, strict=True)]
    return float(np.mean(hits))


def padded(n: int, k: int) -> tuple[FloatArray, RowArray]:
    """Return a search result in which nothing was found."""
    return np.full((n, k), -np.inf, np.float32), np.full((n, k), -1, np.int64)


def checked(vectors: FloatArray, dimension: int) -> FloatArray:
    """Return `vectors` as contiguous float32 of shape (n, dimension).

    Raises
    ------
    InputError
        If the width is another.
    """
    if vectors.ndim != 2 or vectors.shape[1] != dimension:
        raise InputError(f"vectors must have shape (n, {dimension}), got {vectors.shape}")
    return np.ascontiguousarray(vectors, np.float32)


def finite(vectors: FloatArray) -> FloatArray:
    """Return `vectors` with 0 for NaN and large numbers for infinity."""
    return vectors if np.isfinite(vectors).all() else np.nan_to_num(vectors)


def blank_not_finite(queries: FloatArray, scores: FloatArray, rows: RowArray) -> None:
    """Pad, in place, what a query with NaN or infinity found, and score padding -inf."""
    if not np.isfinite(queries).all():
        rows[~np.isfinite(queries).all(axis=1)] = -1
    scores[rows < 0] = -np.inf
