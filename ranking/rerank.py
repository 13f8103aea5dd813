"""The last stage: from scored candidates to the list that is shown. Pure functions.

Nothing is lost: every candidate comes back in exactly one of the three parts of a
:class:`Slate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranking.types import FloatArray, RowArray


@dataclass(frozen=True, slots=True)
class Slate:
    """Positions of candidates, each in exactly one part.

    Attributes
    ----------
    kept : (k,) int64
        What is shown, in order.
    capped : (m,) int64
        Left out because their group was full.
    cut : (n,) int64
        Ranked below the last one shown.
    """

    kept: RowArray
    capped: RowArray
    cut: RowArray


def boost(scores: FloatArray, factors: FloatArray) -> FloatArray:
    """Multiply scores by factors so that a factor above 1 raises every score.

    A positive score is multiplied, a negative one divided, which keeps the order of items with
    equal factors whatever the sign.

    Parameters
    ----------
    scores : (C,) float32
        Finite.
    factors : (C,) float32
        Above 0.
    """
    return np.where(scores >= 0, scores * factors, scores / factors).astype(np.float32)


def rerank(
    scores: FloatArray,
    count: int,
    *,
    pins: Sequence[int] = (),
    diversity: float = 0.0,
    vectors: FloatArray | None = None,
    cap: int | None = None,
    groups: NDArray[np.int64] | None = None,
) -> Slate:
    """Choose and order the `count` candidates to show.

    Parameters
    ----------
    scores : (C,) float32
        Finite; higher is better. Equal scores keep the order of the candidates.
    count : int
        Items wanted, at least 1.
    pins : sequence of int
        Distinct positions placed first, in this order, whatever their score and category.
    diversity : float
        0 orders by score, 1 by dissimilarity to what is already chosen: maximal marginal
        relevance (:func:`_marginal_relevance`). Needs `vectors` when above 0.
    vectors : (C, d) float32 or None
        Item vectors.
    cap : int or None
        At most this many items of one group; pins count, but are not capped. Needs `groups`.
    groups : (C,) int64 or None
        Group of each candidate, -1 for one that belongs to none and is never capped.
    """
    C = len(scores)
    pinned = np.array(pins[:count], np.int64)
    if diversity > 0 and C:
        assert vectors is not None
        return _slate(
            C, *_marginal_relevance(scores, count, pinned, diversity, vectors, cap, groups)
        )
    order = np.argsort(-scores, kind="stable")
    if len(pinned):
        order = np.concatenate([pinned, order[~np.isin(order, pinned)]])
    if cap is None:
        return Slate(order[:count], order[:0], order[count:])
    assert groups is not None
    full = _place_in_group(groups[order]) >= cap
    full[: len(pinned)] = False
    kept = order[~full][:count]
    end = C if len(kept) < count else int(np.flatnonzero(~full)[count - 1])
    return _slate(C, kept, order[:end][full[:end]])


def _place_in_group(groups: NDArray[np.int64]) -> RowArray:
    """Return for each entry how many of its group come before it; 0 for group -1."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    start = np.searchsorted(ordered, ordered)
    place = np.empty(len(groups), np.int64)
    place[order] = np.arange(len(groups)) - start
    place[groups < 0] = 0
    return place


def _marginal_relevance(
    scores: FloatArray,
    count: int,
    pinned: RowArray,
    knob: float,
    vectors: FloatArray,
    cap: int | None,
    groups: NDArray[np.int64] | None,
) -> tuple[RowArray, RowArray]:
    """Choose greedily by relevance and dissimilarity; return (kept, capped).

    Each step takes the candidate of highest ``(1 - knob) relevance - knob max_j cos(i, j)``
    over the chosen j, after Carbonell and Goldstein, "The use of MMR, diversity-based reranking
    for reordering documents and producing summaries", SIGIR 1998. Relevance is the score
    scaled to 0..1 over the candidates, so that the knob means the same for every ranker.
    """
    C = len(scores)
    low, high = float(scores.min()), float(scores.max())
    relevance = (scores - low) / (high - low) if high > low else np.zeros(C, np.float32)
    relevance = (1.0 - knob) * relevance.astype(np.float32)
    length = np.sqrt(np.einsum("cd,cd->c", vectors, vectors))
    unit = vectors / np.maximum(length, 1e-12)[:, None]
    penalty = np.float32(knob) * unit
    value = relevance.copy()  # the least over the chosen j of relevance - knob cos(i, j)
    step = np.empty(C, np.float32)
    taken: dict[int, int] = {}
    kept: list[int] = []
    capped: list[RowArray] = []
    while len(kept) < min(count, C):
        best = int(pinned[len(kept)]) if len(kept) < len(pinned) else int(value.argmax())
        if value[best] == -np.inf and len(kept) >= len(pinned):
            break
        kept.append(best)
        np.dot(penalty, unit[best], out=step)
        np.subtract(relevance, step, out=step)
        if len(kept) == 1:
            value = step.copy()
        else:
            np.minimum(value, step, out=value)
        value[best] = -np.inf
        if cap is not None and groups is not None and (group := int(groups[best])) >= 0:
            taken[group] = taken.get(group, 0) + 1
            if taken[group] == cap:
                full = np.flatnonzero((groups == group) & (value > -np.inf))
                value[full] = -np.inf
                capped.append(full)
    none = np.empty(0, np.int64)
    removed = np.concatenate(capped) if capped else none
    chosen = np.array(kept, np.int64)
    return chosen, removed[~np.isin(removed, chosen)]


def _slate(C: int, kept: RowArray, capped: RowArray) -> Slate:
    rest = np.ones(C, np.bool_)
    rest[kept] = False
    rest[capped] = False
    return Slate(kept, capped, np.flatnonzero(rest))
