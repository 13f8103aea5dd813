"""Item-to-item neighbours from the order of events: which items follow which.

A pair of events of one user within `reach` places weighs 1 / distance; the candidate that came
after weighs 1 and one that came before weighs `backward`, since lists are read forwards. The sum
is divided by ``(n_i n_j)^damping``, the items' event counts, so that popular items do not
neighbour everything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from ranking.retrieval.sequence import EventLog, Sequences
from ranking.types import DoubleArray, FloatArray, RowArray

# Pairs held before they are summed up: bounds memory at about a gigabyte, whatever the log.
_MOST_PENDING = 20_000_000


class CovisitationConfig(BaseModel):
    """How items become neighbours."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    neighbours: int = Field(default=100, ge=1, description="Neighbours kept of each item.")
    reach: int = Field(default=12, ge=1, description="Largest distance of a pair, in events.")
    backward: float = Field(
        default=0.2, ge=0, description="Weight of a pair whose candidate came first; else 1."
    )
    damping: float = Field(
        default=0.25, ge=0, le=1, description="Exponent of the items' event counts in the divisor."
    )


def pair_weights(
    log: Sequences, reach: int, backward: float
) -> tuple[RowArray, RowArray, DoubleArray]:
    """Sum the weights of all pairs of items.

    Parameters
    ----------
    log : Sequences
    reach : int
        Events.
    backward : float

    Returns
    -------
    items, candidates : (P,) int64
        Rows, sorted by (item, candidate), each pair once, no item with itself.
    weights : (P,) float64
        Before damping.
    """
    users, N = log.users, log.items
    keys: list[RowArray] = [np.empty(0, np.int64)]
    weights: list[DoubleArray] = [np.empty(0)]
    pending = 0
    for lag in range(1, min(reach, len(log.rows) - 1) + 1):
        same = (users[lag:] == users[:-lag]) & (log.rows[lag:] != log.rows[:-lag])
        before, after = log.rows[:-lag][same], log.rows[lag:][same]
        keys.append(before * N + after)
        weights.append(np.full(len(before), 1.0 / lag))
        if backward:
            keys.append(after * N + before)
            weights.append(np.full(len(before), backward / lag))
        pending += 2 * len(before)
        if pending > _MOST_PENDING:
            summed = _sum_by_key(np.concatenate(keys), np.concatenate(weights))
            keys, weights, pending = [summed[0]], [summed[1]], 0
    found, total = _sum_by_key(np.concatenate(keys), np.concatenate(weights))
    return found // max(N, 1), found % max(N, 1), total


def damped_weights(
    log: Sequences, reach: int, backward: float, damping: float
) -> tuple[RowArray, RowArray, DoubleArray]:
    """Return what :func:`pair_weights` does, divided by ``(n_i n_j)^damping``."""
    items, candidates, weights = pair_weights(log, reach, backward)
    damped = np.maximum(log.counts(), 1) ** -damping
    return items, candidates, weights * damped[items] * damped[candidates]


def covisitation(
    log: EventLog, config: CovisitationConfig | None = None
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the strongest neighbours of every item.

    Parameters
    ----------
    log : EventLog
    config : CovisitationConfig, optional

    Returns
    -------
    neighbours : (N, M) int32
        Rows of the neighbours, best first, -1 where there are fewer than M.
    scores : (N, M) float32
        Their scores, positive, 0 where padded.
    """
    config = config or CovisitationConfig()
    pairs = damped_weights(log, config.reach, config.backward, config.damping)
    return strongest(*pairs, log.items, config.neighbours)


def strongest(
    items: RowArray, candidates: RowArray, scores: DoubleArray, N: int, keep: int
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return the `keep` best candidates of each item as padded (N, keep) arrays."""
    neighbours = np.full((N, keep), -1, np.int32)
    best = np.zeros((N, keep), np.float32)
    order = np.lexsort((candidates, -scores, items))
    items, candidates, scores = items[order], candidates[order], scores[order]
    first = np.searchsorted(items, np.arange(N))
    place = np.arange(len(items)) - first[items] if len(items) else items
    kept = (place < keep) & (scores > 0)
    neighbours[items[kept], place[kept]] = candidates[kept]
    best[items[kept], place[kept]] = scores[kept]
    return neighbours, best


def _sum_by_key(keys: RowArray, weights: DoubleArray) -> tuple[RowArray, DoubleArray]:
    if len(keys) == 0:
        return keys, weights
    order = np.argsort(keys, kind="stable")
    keys, weights = keys[order], weights[order]
    starts = np.flatnonzero(np.r_[True, keys[1:] != keys[:-1]])
    return keys[starts], np.add.reduceat(weights, starts)
