"""The contract of an index of item vectors, and the exact oracle behind it.

Names follow Faiss: ``n`` queries, ``k`` results a query, highest inner product first. Faiss pads
short results with id -1, which NumPy would read as the last item; here a padded place has row -1
and score -inf, and no caller outside ``ranking/retrieval`` sees one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from features.errors import InputError
from ranking.types import BoolArray, FloatArray, RowArray


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

    def add(self, vectors: FloatArray) -> None:
        """Append vectors (m, d); they get the next rows. Not safe beside a search."""


class ExactIndex:
    """The oracle: every inner product, in NumPy, independent of Faiss."""

    kind = "exact"

    def __init__(self, vectors: FloatArray) -> None:
        self.dimension = int(vectors.shape[1])
        self._base = vectors
        self._tail = np.empty((0, self.dimension), np.float32)

    @property
    def ntotal(self) -> int:
        """Number of vectors."""
        return len(self._base) + len(self._tail)

    def add(self, vectors: FloatArray) -> None:
        """Append vectors (m, d)."""
        self._tail = np.concatenate([self._tail, checked(vectors, self.dimension)])

    def search(
        self, queries: FloatArray, k: int, allowed: BoolArray | None = None
    ) -> tuple[FloatArray, RowArray]:
        """Find the k best rows; see :meth:`Index.search`. Equal scores: lower row first."""
        queries = checked(queries, self.dimension)
        rows = np.arange(self.ntotal) if allowed is None else np.flatnonzero(allowed)
        out_scores, out_rows = padded(len(queries), k)
        keep = min(k, len(rows))
        if not keep:
            return out_scores, out_rows
        scores = queries @ self.take(rows).T  # (n, m)
        if keep < len(rows):
            top = np.argpartition(scores, len(rows) - keep, axis=1)[:, -keep:]
        else:
            top = np.broadcast_to(np.arange(len(rows)), scores.shape)
        found = np.take_along_axis(scores, top, 1)
        order = np.lexsort((top, -found), axis=1)
        out_scores[:, :keep] = np.take_along_axis(found, order, 1)
        out_rows[:, :keep] = rows[np.take_along_axis(top, order, 1)]
        blank_not_finite(queries, out_scores, out_rows)
        return out_scores, out_rows

    def take(self, rows: RowArray) -> FloatArray:
        """Return the vectors of `rows`, ascending and distinct, appended ones included; (m, d)."""
        if not len(self._tail):
            return self._base[rows] if len(rows) < len(self._base) else self._base
        old = rows < len(self._base)
        out = np.empty((len(rows), self.dimension), np.float32)
        out[old] = self._base[rows[old]]
        out[~old] = self._tail[rows[~old] - len(self._base)]
        return out


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


def blank_not_finite(queries: FloatArray, scores: FloatArray, rows: RowArray) -> None:
    """Pad, in place, what a query with NaN or infinity found, and score padding -inf."""
    bad = ~np.isfinite(queries).all(axis=1)
    if bad.any():
        rows[bad] = -1
    scores[rows < 0] = -np.inf
