"""From scores of candidates to the answer of one request: re-rank, count, explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ranking.catalogue import LiveCatalogue
from ranking.requests import Requests
from ranking.rerank import Slate, boost, rerank
from ranking.types import (
    DROP_REASONS,
    Candidates,
    FloatArray,
    Items,
    Note,
    Query,
    RankedItem,
    Ranking,
    RowArray,
    SourceHit,
)


@dataclass(frozen=True, slots=True)
class Ranked:
    """What the stages before re-ranking found for a batch.

    Attributes
    ----------
    candidates : Candidates
    scores : (B, C) float32
        Arbitrary where padded.
    requests : Requests or None
        None for a request without a user.
    items : Items
    """

    candidates: Candidates
    scores: FloatArray
    requests: Requests | None
    items: Items


def with_pins(candidates: Candidates, pins: Sequence[Sequence[int]], items: Items) -> Candidates:
    """Return candidates that hold every pin; a pin that no source found has no source.

    Parameters
    ----------
    candidates : Candidates
    pins : sequence of B sequences of int
        Distinct rows.
    items : Items
    """
    missing = [
        [row for row in some if row not in rows] if some else []
        for some, rows in zip(pins, candidates.rows, strict=True)
    ]
    extra = max(map(len, missing))
    if not extra:
        return candidates
    B = len(candidates.rows)
    S = len(candidates.sources)
    rows = np.concatenate([candidates.rows, np.full((B, extra), -1)], axis=1)
    coarse = np.pad(candidates.coarse_scores, ((0, 0), (0, extra)), constant_values=-np.inf)
    ranks = np.concatenate([candidates.source_ranks, np.full((B, extra, S), -1, np.int32)], axis=1)
    scores = np.pad(candidates.source_scores, ((0, 0), (0, extra), (0, 0)), constant_values=np.nan)
    for b, some in enumerate(missing):
        # Padding stays behind everything real.
        end = int((candidates.rows[b] >= 0).sum())
        rows[b, end : end + len(some)] = some
        coarse[b, end : end + len(some)] = 0.0
    vectors = items.vectors[rows]
    return Candidates(
        rows=rows,
        vectors=vectors,
        coarse_scores=coarse,
        ann_scores=np.matmul(vectors, candidates.user_vectors[:, :, None])[:, :, 0],
        source_scores=scores,
        source_ranks=ranks,
        user_vectors=candidates.user_vectors,
        sources=candidates.sources,
        dropped=candidates.dropped,
    )


def answer(ranked: Ranked, b: int, query: Query, catalogue: LiveCatalogue) -> Ranking:
    """Re-rank the candidates of request `b` and say where each returned item came from."""
    rows = ranked.candidates.rows[b]
    C = int((rows >= 0).sum())  # padding is at the end
    rows = rows[:C]
    scores = ranked.scores[b, :C]
    pins = ranked.requests.pins[b] if ranked.requests else []
    if query.boosts:
        scores = boost(scores, _factors(query, rows, ranked.items, catalogue))
    slate = rerank(
        scores,
        query.count,
        pins=[int(np.flatnonzero(rows == pin)[0]) for pin in pins],
        diversity=query.diversity,
        vectors=ranked.candidates.vectors[b, :C] if query.diversity else None,
        cap=query.category_cap,
        groups=_first_category(rows, ranked.items) if query.category_cap is not None else None,
    )
    # Only a pin can be a candidate without a source.
    pinned = int((ranked.candidates.source_ranks[b, :C] < 0).all(axis=1).sum()) if pins else 0
    counts = _counts(ranked.candidates.dropped[b], C, pinned, slate)
    notes = list(ranked.requests.notes[b]) if ranked.requests else []
    if counts["returned"] < query.count:
        notes.append(_short(query, counts, len(ranked.items)))
    return Ranking(
        items=_items(ranked.candidates, b, slate.kept, scores, catalogue),
        counts=counts,
        timing_ms={},
        release="",
        notes=notes,
    )


def _items(
    candidates: Candidates, b: int, kept: RowArray, scores: FloatArray, catalogue: LiveCatalogue
) -> list[RankedItem]:
    names = candidates.sources
    rows = candidates.rows[b, kept]
    columns = (
        rows.tolist(),
        catalogue.ids(rows),
        scores[kept].tolist(),
        candidates.source_ranks[b, kept].tolist(),
        candidates.source_scores[b, kept].tolist(),
    )
    return [
        RankedItem(
            row,
            item_id,
            score,
            tuple(
                SourceHit(name, rank, value)
                for name, rank, value in zip(names, ranks, values, strict=True)
                if rank >= 0
            ),
        )
        for row, item_id, score, ranks, values in zip(*columns, strict=True)
    ]


def _counts(dropped: dict[str, int], C: int, pinned: int, slate: Slate) -> dict[str, int]:
    filtered = sum(dropped.values())
    return {
        "retrieved": filtered + C - pinned,
        "filtered": filtered,
        "ranked": C - pinned,
        "returned": len(slate.kept),
        **dropped,
        "pinned": pinned,
        "capped": len(slate.capped),
        "cut": len(slate.cut),
    }


def _short(query: Query, counts: dict[str, int], N: int) -> Note:
    removed = [f"{counts[key]} {key}" for key in (*DROP_REASONS, "capped") if counts[key]]
    why = f"; left out: {', '.join(removed)}" if removed else ""
    return Note(
        "short",
        f"{counts['returned']} of {query.count} items: the catalogue has {N}, "
        f"of which {counts['ranked']} are eligible{why}",
    )


def _first_category(rows: RowArray, items: Items) -> RowArray:
    """Return the first category of each row, -1 where it has none."""
    flags = items.categories[rows]  # (C, K)
    if not flags.shape[1]:
        return np.full(len(rows), -1, np.int64)
    return np.where(flags.any(axis=1), flags.argmax(axis=1), -1)


def _factors(query: Query, rows: RowArray, items: Items, catalogue: LiveCatalogue) -> FloatArray:
    factors = np.ones(len(rows), np.float32)
    for category, factor in query.boosts:
        for column in catalogue.columns([category]).tolist():
            factors[items.categories[rows, column] > 0] *= factor
    return factors
