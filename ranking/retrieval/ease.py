"""EASE: which items go together over whole histories, in no order.

After Steck 2019 (https://arxiv.org/abs/1905.03375): the linear map of a history of ones and zeros
to itself with a diagonal of 0 and the least squared error plus ``regularisation`` times its squared
weights. With X the users' histories, ``P = (XᵀX + λI)⁻¹`` and ``B = I - P / diag(P)`` column by
column. It is solved in whichever of users and items are fewer: by the Woodbury identity
``λP = I - R`` with ``R = Xᵀ(XXᵀ + λI)⁻¹X``, so ``B[i, j] = R[i, j] / (1 - R[j, j])``.

Only the strongest weights of each item are kept; they recommend no worse than all (see
``docs/quality-log.md``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ranking.retrieval.sequence import EventLog
from ranking.types import DoubleArray, FloatArray

if TYPE_CHECKING:
    from scipy import sparse

# Rows of weights held at once.
_BLOCK = 512


class EaseConfig(BaseModel):
    """How EASE is solved."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    regularisation: float = Field(default=500.0, gt=0, description="Weight of the squared weights.")
    neighbours: int = Field(default=50, ge=1, description="Weights kept of each item.")
    most: int = Field(
        default=10_000,
        ge=0,
        description="EASE is left out where users and items are both more: it inverts a matrix of "
        "the smaller number.",
    )


def ease(log: EventLog, config: EaseConfig | None = None) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the strongest weights of every item.

    Parameters
    ----------
    log : EventLog
    config : EaseConfig, optional

    Returns
    -------
    neighbours : (N, M) int32
        Rows that an item speaks for, strongest first, -1 where there are fewer than M; M is 0
        where EASE is left out.
    weights : (N, M) float32
        Positive, 0 where padded.
    """
    # What serves reads this configuration too, and has no such package.
    from scipy import sparse

    config = config or EaseConfig()
    V, N = len(log.offsets) - 1, log.items
    if min(V, N) > config.most or not len(log.rows):
        return np.empty((N, 0), np.int32), np.empty((N, 0), np.float32)
    x = sparse.csr_matrix((np.ones(len(log.rows)), (log.users, log.rows)), shape=(V, N))
    x.data[:] = 1.0  # an item that was taken twice was taken
    x.sum_duplicates()
    x.data[:] = 1.0
    block = _by_items(x, config.regularisation) if N <= V else _by_users(x, config.regularisation)
    M = min(config.neighbours, max(N - 1, 0))
    neighbours, weights = np.full((N, M), -1, np.int32), np.zeros((N, M), np.float32)
    for start in range(0, N, _BLOCK):
        part = block(start, min(start + _BLOCK, N))
        part[np.arange(len(part)), start + np.arange(len(part))] = 0.0
        best = np.argpartition(-part, max(M - 1, 0), axis=1)[:, :M]
        order = np.argsort(-np.take_along_axis(part, best, axis=1), axis=1, kind="stable")
        best = np.take_along_axis(best, order, axis=1)
        found = np.take_along_axis(part, best, axis=1)
        neighbours[start : start + len(part)] = np.where(found > 0, best, -1)
        weights[start : start + len(part)] = np.maximum(found, 0)
    return neighbours, weights


def _by_items(x: sparse.csr_matrix, regularisation: float) -> Callable[[int, int], DoubleArray]:
    gram = (x.T @ x).toarray()
    gram[np.diag_indices_from(gram)] += regularisation
    inverse = np.linalg.inv(gram)
    return lambda start, stop: inverse[start:stop] / -np.diag(inverse)


def _by_users(x: sparse.csr_matrix, regularisation: float) -> Callable[[int, int], DoubleArray]:
    gram = (x @ x.T).toarray()
    gram[np.diag_indices_from(gram)] += regularisation
    half = x.T @ np.linalg.inv(gram)  # (N, V)
    rest = 1.0 - np.asarray(x.T.multiply(half).sum(axis=1)).ravel()
    return lambda start, stop: np.asarray(x.T @ half[start:stop].T).T / rest
