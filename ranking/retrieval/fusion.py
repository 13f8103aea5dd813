"""Many lists become one: filters, quotas, fusion and counts for a whole batch.

The order of the merged list is weighted reciprocal-rank fusion: with ``r_s(i)`` the 1-based rank
of item i among the eligible items of source s,

    score(i) = sum over s of  weight_s / (rank_constant + r_s(i))

after Cormack, Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual
rank learning methods", SIGIR 2009, who use weights of 1 and a constant of 60. Ranks are taken
after the filters, so that a user who has seen much is not punished by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranking.retrieval.filters import SURPLUS, Filters, reasons
from ranking.retrieval.merge import best, group
from ranking.retrieval.sources import SourceBatch
from ranking.types import DROP_REASONS, Candidates, FloatArray, RowArray


@dataclass(frozen=True, slots=True)
class Ask:
    """What B requests want of S sources.

    Attributes
    ----------
    batch : SourceBatch
    filters : Filters
    limits : (B,) int64
        Candidates wanted.
    quotas : (B, S) int64
        Most eligible items taken from each source.
    weights : (B, S) float32
        Weight of each source in the fusion.
    """

    batch: SourceBatch
    filters: Filters
    limits: RowArray
    quotas: RowArray
    weights: FloatArray


def fuse(
    found: Sequence[tuple[RowArray, FloatArray]],
    ask: Ask,
    sources: tuple[str, ...],
    rank_constant: float,
    scratch: NDArray[np.uint8],
) -> Candidates:
    """Merge the lists of S sources.

    Parameters
    ----------
    found : sequence of S pairs
        Rows and scores (B, k_s) of each source, as :meth:`Source.retrieve` returns them.
    ask : Ask
    sources : tuple of str
        Names of the sources.
    rank_constant : float
        In ranks.
    scratch : (N,) uint8
        See :func:`ranking.retrieval.filters.reasons`.
    """
    items, now = ask.batch.items, ask.batch.histories.now
    rows = np.concatenate([rows for rows, _ in found], axis=1)  # (B, K)
    scores = np.concatenate([scores for _, scores in found], axis=1)
    B, K = rows.shape
    S = len(found)
    widths = [source_rows.shape[1] for source_rows, _ in found]
    source = np.repeat(np.arange(S), widths)  # (K,)
    starts = np.cumsum([0, *widths[:-1]])

    why = reasons(rows, items, ask.filters, now, scratch)
    ok = (why == 0) & (rows >= 0)
    before = np.zeros((B, K + 1), np.int64)  # eligible rows in front of each place
    np.cumsum(ok, axis=1, out=before[:, 1:])
    rank = before[:, :K] - before[:, starts][:, source]
    rows[rank >= ask.quotas[:, source]] = -1
    share = ask.weights[:, source] / (rank_constant + 1 + rank)
    share *= ok

    groups = group(rows)
    U = groups.rows.shape[1]
    fused = groups.sum(share)  # (B, U), 0 where not eligible
    eligible = (fused > 0).sum(axis=1)
    kept = np.minimum(eligible, ask.limits)
    top = best(fused, int(kept.max(initial=0)))  # (B, C)
    real = np.arange(top.shape[1]) < kept[:, None]
    slots = top + np.arange(B)[:, None] * U
    out = np.where(real, groups.rows.ravel()[slots], -1)

    cells = groups.slot * S + source[groups.entry % K]
    source_ranks = np.full((B * U, S), -1, np.int32)
    source_scores = np.full((B * U, S), np.nan, np.float32)
    source_ranks.ravel()[cells] = rank.ravel()[groups.entry]
    source_scores.ravel()[cells] = scores.ravel()[groups.entry]
    source_ranks, source_scores = source_ranks[slots], source_scores[slots]  # (B, C, S)
    coarse = fused.ravel()[slots]
    if not real.all():
        coarse[~real] = -np.inf
        source_ranks[~real] = -1
        source_scores[~real] = np.nan

    reason = np.zeros((B, U), np.uint8)
    reason.ravel()[groups.slot] = why.ravel()[groups.entry]
    vectors = items.vectors[out]  # (B, C, d)
    return Candidates(
        rows=out,
        vectors=vectors,
        coarse_scores=coarse,
        ann_scores=np.matmul(vectors, ask.batch.user_vectors[:, :, None])[:, :, 0],
        source_scores=source_scores,
        source_ranks=source_ranks,
        user_vectors=ask.batch.user_vectors,
        sources=sources,
        dropped=_dropped(reason, eligible - kept),
    )


def no_candidates(B: int, d: int, sources: tuple[str, ...]) -> Candidates:
    """Return the candidates of B requests of an empty catalogue with vectors of width d."""
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


def _dropped(reason: NDArray[np.uint8], surplus: RowArray) -> list[dict[str, int]]:
    """Count what was removed from each request, by reason; padding has reason 0."""
    B = len(reason)
    size = SURPLUS + 1
    places = reason + np.arange(B)[:, None] * size
    counts = np.bincount(places.ravel(), minlength=B * size).reshape(B, size)
    counts[:, SURPLUS] = surplus
    return [dict(zip(DROP_REASONS, row[1:], strict=True)) for row in counts.tolist()]
