"""What retrieval knew of each (user, candidate) pair, as the ranker reads it.

Used by training and by serving. Everything is computed for a whole batch at once; sizes as in
:mod:`ranking.types`, n latest events of a history.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from features.spec import names
from ranking.retrieval.merge import group
from ranking.types import BoolArray, Candidates, FloatArray, Histories, Items, RowArray

# Latest items that transitions and similarities look back on.
LATEST = 20
_DECAY_5 = 0.7
_DECAY_20 = 0.9
_CATEGORY_LATEST = 5
# Scores of neighbours lie around 0.1 to 1; the factor spreads the small ones.
_SCORE_FACTOR = 10.0
# A candidate that a source did not return ranks behind all that it did.
_MISSING_RANK = 1000.0


def candidate_features(candidates: Candidates, histories: Histories, items: Items) -> FloatArray:
    """Return the features of group ``candidate``.

    Parameters
    ----------
    candidates : Candidates
        In coarse order.
    histories : Histories
        That the candidates were retrieved for.
    items : Items
        State of the catalogue that the rows refer to.

    Returns
    -------
    (B, C, Fk) float32
        In the order ``names("candidate")``; finite, 0 where padded.
    """
    rows = candidates.rows
    B, C = rows.shape
    real = rows >= 0
    recent, known = _latest(histories)
    ann = np.where(real, candidates.ann_scores, 0.0)
    best = np.where(real, candidates.ann_scores, -np.inf).max(axis=1, initial=-np.inf)
    columns: dict[str, NDArray[np.floating]] = {
        "cand_ann_score": ann,
        "cand_ann_gap": ann - np.where(np.isfinite(best), best, 0.0)[:, None],
        "cand_ann_log_rank": _log_rank(candidates, "ann"),
        "cand_coarse_log_rank": np.broadcast_to(np.log1p(np.arange(C)), (B, C)),
        "cand_item_to_item_score": _log_score(np.nan_to_num(_score(candidates, "item_to_item"))),
        "cand_item_to_item_log_rank": _log_rank(candidates, "item_to_item"),
        "cand_trending_log_rank": _log_rank(candidates, "trending"),
        "cand_is_new": (_rank(candidates, "new_items") >= 0).astype(np.float32),
        **_transitions(rows, recent, known, items),
        **_similarities(candidates, recent, known, items),
        "cand_category_overlap": _category_overlap(rows, recent, known, items),
    }
    out = np.empty((B, C, len(names("candidate"))), np.float32)
    for place, name in enumerate(names("candidate")):
        out[..., place] = columns[name]
    out[~real] = 0.0
    return out


def _latest(histories: Histories) -> tuple[RowArray, BoolArray]:
    """Return the rows of the latest items (B, n), newest first, and which of them are real."""
    n = min(LATEST, histories.rows.shape[1])
    at = histories.lengths[:, None] - 1 - np.arange(n)
    rows = np.take_along_axis(histories.rows, np.maximum(at, 0), 1)
    known = (at >= 0) & (rows >= 0)
    return np.where(known, rows, 0), known


def _rank(candidates: Candidates, source: str) -> NDArray[np.int32]:
    if source not in candidates.sources:
        return np.full(candidates.rows.shape, -1, np.int32)
    ranks: NDArray[np.int32] = candidates.source_ranks[..., candidates.sources.index(source)]
    return ranks


def _log_rank(candidates: Candidates, source: str) -> NDArray[np.floating]:
    rank = _rank(candidates, source)
    logs: NDArray[np.floating] = np.log1p(np.where(rank < 0, _MISSING_RANK, rank))
    return logs


def _score(candidates: Candidates, source: str) -> FloatArray:
    if source not in candidates.sources:
        return np.zeros(candidates.rows.shape, np.float32)
    scores: FloatArray = candidates.source_scores[..., candidates.sources.index(source)]
    return scores


def _log_score(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    logs: NDArray[np.floating] = np.log1p(_SCORE_FACTOR * np.maximum(scores, 0.0))
    return logs


def _transitions(
    rows: RowArray, recent: RowArray, known: BoolArray, items: Items
) -> dict[str, NDArray[np.floating]]:
    """Sum the neighbour scores of the latest 1, 5 and 20 items for each candidate."""
    B, C = rows.shape
    n, M = recent.shape[1], items.neighbours.shape[1]
    found = np.zeros((3, B, C), np.float32)
    if n and M and C:
        neighbours = items.neighbours[recent].astype(np.int64)  # (B, n, M)
        neighbours[~known] = -1
        # Candidates first: each group's first entry is the candidate, the rest its hits.
        both = np.concatenate([rows, neighbours.reshape(B, n * M)], axis=1)
        groups = group(both)
        width = C + n * M
        column = groups.entry % width
        hits = np.concatenate(
            [np.zeros((B, C), np.float32), items.neighbour_scores[recent].reshape(B, n * M)], 1
        ).ravel()[groups.entry]
        age = (column - C) // M  # negative for the candidates themselves
        is_candidate = column < C
        place = groups.entry[is_candidate]
        target = (place // width) * C + place % width
        size = groups.rows.size
        for which, weight in enumerate(
            (
                (age == 0),
                (age < 5) * _DECAY_5 ** np.maximum(age, 0),
                _DECAY_20 ** np.maximum(age, 0),
            )
        ):
            total = np.bincount(groups.slot, hits * weight, size)
            found[which].ravel()[target] = total[groups.slot[is_candidate]]
    logs = _log_score(found)
    return {
        "cand_transition_1": logs[0],
        "cand_transition_5": logs[1],
        "cand_transition_20": logs[2],
    }


def _similarities(
    candidates: Candidates, recent: RowArray, known: BoolArray, items: Items
) -> dict[str, NDArray[np.floating]]:
    """Return cosines of candidate vectors with those of the latest items: last, best and mean."""
    B, C = candidates.rows.shape
    n = recent.shape[1]
    if n == 0 or C == 0:
        nothing = np.zeros((B, C), np.float32)
        return dict.fromkeys(
            ("cand_similarity_1", "cand_similarity_max", "cand_similarity_mean"), nothing
        )
    latest = _unit(items.vectors[recent]) * known[..., None]  # (B, n, d)
    cosine = np.matmul(_unit(candidates.vectors), latest.transpose(0, 2, 1))  # (B, C, n)
    count = np.maximum(known.sum(axis=1), 1)[:, None]
    return {
        "cand_similarity_1": cosine[..., 0],
        "cand_similarity_max": np.where(known[:, None], cosine, -1.0).max(axis=2),
        "cand_similarity_mean": cosine.sum(axis=2) / count,
    }


def _unit(vectors: FloatArray) -> FloatArray:
    norms = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None]
    unit: FloatArray = vectors / np.maximum(norms, 1e-12)
    return unit


def _category_overlap(
    rows: RowArray, recent: RowArray, known: BoolArray, items: Items
) -> NDArray[np.floating]:
    """Return the cosine of a candidate's categories with the sum over the latest 5 items."""
    n = min(_CATEGORY_LATEST, recent.shape[1])
    held = items.categories[recent[:, :n]].astype(np.float32) * known[:, :n, None]
    profile = held.sum(axis=1)  # (B, K)
    own = items.categories[rows].astype(np.float32)  # (B, C, K)
    dot = np.matmul(own, profile[:, :, None])[..., 0]
    norms = np.sqrt(own.sum(axis=2) * np.einsum("bk,bk->b", profile, profile)[:, None])
    overlap: NDArray[np.floating] = dot / np.maximum(norms, 1e-12)
    return overlap
