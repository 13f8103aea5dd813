"""Ranking metrics over (U, k) arrays: one value a user, so that intervals can be drawn.

A ranked list holds item rows, best first; ``-1`` pads short lists and counts as a miss.
Relevance is binary. Users without a relevant item have no recall: they are the caller's to
leave out, and :func:`relevant_counts` says which they are.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from features.errors import InputError
from ranking.types import BoolArray, DoubleArray, FloatArray, RowArray


def relevant_counts(relevant: RowArray) -> RowArray:
    """Return the number of relevant items of each user, (U,), from (U, R) rows padded by -1."""
    return np.asarray((relevant >= 0).sum(axis=1), dtype=np.int64)


def hits(ranked: RowArray, relevant: RowArray) -> BoolArray:
    """Mark the places of each list that hold a relevant item.

    Parameters
    ----------
    ranked : (U, k) int64
        Item rows, best first, padded by -1.
    relevant : (U, R) int64
        Relevant item rows in any order, padded by -1.

    Returns
    -------
    (U, k) bool

    Raises
    ------
    InputError
        If a list names an item twice (its recall could pass 1), or the users differ.
    """
    if ranked.shape[0] != relevant.shape[0]:
        raise InputError(
            f"ranked lists of {ranked.shape[0]} users, relevant items of {relevant.shape[0]}: "
            "expected one row for each user in both"
        )
    if ranked.size == 0 or relevant.size == 0:
        return np.zeros(ranked.shape, dtype=np.bool_)
    ordered = np.sort(ranked, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        user = int(np.flatnonzero(twice.any(axis=1))[0])
        raise InputError(
            f"ranked list {user} names item row {int(ordered[user, 1:][twice[user]][0])} twice: "
            "expected each item at most once"
        )
    width = int(max(ranked.max(), relevant.max())) + 2
    offsets = np.arange(ranked.shape[0], dtype=np.int64)[:, None] * width
    wanted = (relevant + offsets)[relevant >= 0]
    return np.isin(ranked + offsets, wanted) & (ranked >= 0)


def recall_at(hit: BoolArray, counts: RowArray, k: int) -> DoubleArray:
    """Return the share of each user's relevant items among the first `k`, (U,) in [0, 1]."""
    return np.asarray(hit[:, :k].sum(axis=1) / np.maximum(counts, 1), dtype=np.float64)


def hit_rate_at(hit: BoolArray, k: int) -> DoubleArray:
    """Return 1 for users with a relevant item among the first `k`, else 0, (U,)."""
    return np.asarray(hit[:, :k].any(axis=1), dtype=np.float64)


def ndcg_at(hit: BoolArray, counts: RowArray, k: int) -> DoubleArray:
    """Return NDCG with binary gains, (U,) in [0, 1].

    The ideal list has ``min(counts, k)`` relevant items on top (Järvelin and Kekäläinen 2002,
    https://doi.org/10.1145/582415.582418, discount ``log2(position + 1)``).
    """
    discount = 1.0 / np.log2(np.arange(2, k + 2))  # (k,)
    shown = hit[:, :k]
    gain = shown @ discount[: shown.shape[1]]
    ideal = np.concatenate([[0.0], np.cumsum(discount)])[np.minimum(counts, k)]
    return np.where(ideal > 0, gain / np.where(ideal > 0, ideal, 1.0), 0.0)


def reciprocal_rank(hit: BoolArray) -> DoubleArray:
    """Return 1 / position of the first relevant item, 0 where the list has none, (U,)."""
    if hit.shape[1] == 0:
        return np.zeros(len(hit))
    return np.where(hit.any(axis=1), 1.0 / (hit.argmax(axis=1) + 1), 0.0)


def coverage_at(ranked: RowArray, k: int, catalogue_size: int) -> float:
    """Return the share of the catalogue that stands in at least one list's first `k`."""
    shown = ranked[:, :k]
    return len(np.unique(shown[shown >= 0])) / max(catalogue_size, 1)


def novelty_at(
    ranked: RowArray, k: int, item_users: NDArray[np.integer], users: int
) -> DoubleArray:
    """Return the mean self-information of the first `k` items in bits, (U,).

    ``-log2((n_i + 1) / (users + 1))`` with ``n_i`` the users who know item i: Zhou et al. 2010
    (https://doi.org/10.1073/pnas.1000488107), smoothed by one so that an item that nobody knows
    has a value. An empty list gives NaN.
    """
    information = -np.log2((np.asarray(item_users, dtype=np.float64) + 1) / (users + 1))  # (N,)
    shown = ranked[:, :k]
    valid = shown >= 0
    total = np.where(valid, information[np.where(valid, shown, 0)], 0.0).sum(axis=1)
    return _mean_of(total, valid.sum(axis=1))


def diversity_at(ranked: RowArray, k: int, vectors: FloatArray) -> DoubleArray:
    """Return one minus the mean pairwise cosine of the first `k` items, (U,).

    Ziegler et al. 2005 (https://doi.org/10.1145/1060745.1060754) with cosine similarity of the
    item `vectors` (N, d). A list of fewer than two items gives NaN.
    """
    shown = ranked[:, :k]
    valid = shown >= 0
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    chosen = unit[np.where(valid, shown, 0)] * valid[:, :, None]  # (U, k, d)
    # The sum over all pairs is the squared length of the sum, less each item with itself.
    squares = (chosen.astype(np.float64) ** 2).sum(axis=(1, 2))
    pairs = (chosen.sum(axis=1, dtype=np.float64) ** 2).sum(axis=1) - squares
    n = valid.sum(axis=1)
    return 1.0 - _mean_of(pairs, n * (n - 1))


def _mean_of(total: DoubleArray, n: NDArray[np.integer]) -> DoubleArray:
    return np.where(n > 0, total / np.maximum(n, 1), np.nan)
