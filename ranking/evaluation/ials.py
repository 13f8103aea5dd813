"""Matrix factorisation for implicit feedback by alternating least squares.

The model of Hu, Koren and Volinsky 2008 (https://doi.org/10.1109/ICDM.2008.22) in the form of
Rendle et al. 2022 (https://arxiv.org/abs/2110.14037): every pair of user and item counts as a
weak zero of weight `alpha`, a pair that happened as a one of weight 1 more, and the
regularisation of a vector grows with the weight of its pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse

from ranking.evaluation.events import TrainingEvents
from ranking.types import FloatArray, RowArray

_CELLS_A_BLOCK = 60_000
_START_SCALE = 0.1


@dataclass(frozen=True, slots=True)
class Factors:
    """What was learnt.

    Attributes
    ----------
    items : (N, d) float32
        Item vectors.
    alpha : float
        Weight of a pair that did not happen.
    regularisation : float
        Strength λ for each unit of weight.
    """

    items: FloatArray
    alpha: float
    regularisation: float


def factorise(
    events: TrainingEvents,
    dimensions: int = 128,
    alpha: float = 0.1,
    regularisation: float = 0.003,
    sweeps: int = 12,
    seed: int = 0,
) -> Factors:
    """Learn item vectors.

    Parameters
    ----------
    events : TrainingEvents
    dimensions : int
        d.
    alpha : float
        Weight of a pair that did not happen; one that did has `alpha` + 1.
    regularisation : float
        λ; a user with n items and an alpha over N items is regularised by λ (n + alpha N).
    sweeps : int
        Rounds of solving all users, then all items.
    seed : int
        Of the start.
    """
    x = events.matrix()
    transposed = x.T.tocsr()
    rng = np.random.default_rng(seed)
    shape = (events.items, dimensions)
    items = rng.standard_normal(shape, np.float32) * np.float32(_START_SCALE / dimensions**0.5)
    for _ in range(sweeps):
        users = solve(x, items, alpha, regularisation)
        items = solve(transposed, users, alpha, regularisation)
    return Factors(items, alpha, regularisation)


def solve(
    x: sparse.csr_matrix, others: FloatArray, alpha: float, regularisation: float
) -> FloatArray:
    """Return the vectors (V, d) that fit rows of `x` (V, N) best, given `others` (N, d).

    Each solves ``(Σ h hᵀ + a HᵀH + λ (n + a N) I) w = Σ h`` over the n items of its row,
    with a for `alpha`. Rows of like length are gathered and solved together.
    """
    d = others.shape[1]
    lengths = np.diff(x.indptr)
    shared = (alpha * (others.T @ others)).astype(np.float32)
    out = np.zeros((x.shape[0], d), np.float32)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    # The last row of `padded` is what stands where a row has no item.
    padded = np.concatenate([others, np.zeros((1, d), np.float32)])
    diagonal = np.arange(d)
    start = 0
    while start < len(order):
        following = lengths[order[start : start + _CELLS_A_BLOCK]]
        cells = following * np.arange(1, len(following) + 1)
        stop = start + max(1, int(np.searchsorted(cells, _CELLS_A_BLOCK, side="right")))
        rows = order[start:stop]
        held = padded[_gathered(x, rows, lengths)]  # (B, L, d)
        gram = held.transpose(0, 2, 1) @ held + shared  # (B, d, d)
        gram[:, diagonal, diagonal] += (
            regularisation * (lengths[rows] + alpha * x.shape[1])
        ).astype(np.float32)[:, None]
        out[rows] = np.linalg.solve(gram, held.sum(axis=1)[:, :, None])[:, :, 0]
        start = stop
    return out


def _gathered(x: sparse.csr_matrix, rows: RowArray, lengths: RowArray) -> RowArray:
    """Return the columns of each row, padded by N, (B, L)."""
    width = int(lengths[rows].max())
    places = x.indptr[rows].astype(np.int64)[:, None] + np.arange(width)
    real = np.arange(width) < lengths[rows][:, None]
    columns = x.indices[np.minimum(places, len(x.indices) - 1)].astype(np.int64)
    return np.where(real, columns, np.int64(x.shape[1]))


class Ials:
    """Scores by :class:`Factors`; a user is folded in by the `latest` items, None: by all."""

    def __init__(self, events: TrainingEvents, factors: Factors, latest: int | None = None) -> None:
        self._events = events
        self._factors = factors
        self._latest = latest if latest is not None else int(np.diff(events.offsets).max())

    def scores(self, users: RowArray, as_of: object) -> FloatArray:
        """Return (B, N); all 0 for a user without events."""
        recent = self._events.recent(users, np.ones(self._latest))
        recent.sum_duplicates()
        recent.data[:] = 1.0
        known = self._factors
        vectors = solve(recent, known.items, known.alpha, known.regularisation)
        return np.asarray(vectors @ known.items.T, dtype=np.float32)
