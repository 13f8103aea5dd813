"""What retrieval knew of each (user, candidate) pair, as the ranker reads it.

Used by training and by serving. Everything is computed for a whole batch at once; sizes as in
:mod:`ranking.types`, n latest events of a history.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from features.spec import names
from ranking.types import (
    BoolArray,
    Candidates,
    Covisits,
    FloatArray,
    Histories,
    Items,
    RowArray,
)

# Latest items that transitions and similarities look back on.
LATEST = 20
_CATEGORY_LATEST = 5
# Weights of the latest items by age for each transition feature.
_AGE = np.arange(LATEST)
_TRANSITIONS = {
    "cand_transition_1": (_AGE < 1).astype(np.float64),
    "cand_transition_5": (_AGE < 5) * 0.7**_AGE,
    "cand_transition_20": 0.9**_AGE,
}
# Scores of neighbours lie around 0.1 to 1; the factor spreads the small ones.
_SCORE_FACTOR = 10.0
# A candidate that a source did not return (rank -1) reads the last entry, as the worst rank does.
_LOG_RANKS = np.log1p(np.arange(1001)).astype(np.float32)


def candidate_features(
    candidates: Candidates,
    histories: Histories,
    items: Items,
    covisits: Covisits | None = None,
) -> FloatArray:
    """Return the features of group ``candidate``.

    Parameters
    ----------
    candidates : Candidates
        In coarse order.
    histories : Histories
        That the candidates were retrieved for.
    items : Items
        State of the catalogue that the rows refer to.
    covisits : Covisits or None
        As of each request; None takes those of `items`.

    Returns
    -------
    (B, C, Fk) float32
        In the order ``names("candidate")``; finite, 0 where padded.
    """
    rows = candidates.rows
    B, C = rows.shape
    order = names("candidate")
    out = np.zeros((len(order), B, C), np.float32)
    columns = dict(zip(order, out, strict=True))
    real = rows >= 0
    ann = np.where(real, candidates.ann_scores, -np.inf)
    best = ann.max(axis=1, initial=-np.inf, keepdims=True)
    columns["cand_ann_score"][:] = ann
    np.subtract(ann, best, out=columns["cand_ann_gap"], where=real)
    columns["cand_coarse_log_rank"][:] = _LOG_RANKS[np.minimum(np.arange(C), 1000)]
    for source, name in (
        ("ann", "cand_ann_log_rank"),
        ("item_to_item", "cand_item_to_item_log_rank"),
        ("ease", "cand_ease_log_rank"),
        ("trending", "cand_trending_log_rank"),
    ):
        columns[name][:] = _LOG_RANKS[np.minimum(_ranks(candidates, source), 1000)]
    columns["cand_is_new"][:] = _ranks(candidates, "new_items") >= 0
    columns["cand_item_to_item_score"][:] = _log_score(_scores(candidates, "item_to_item"))
    _ease(columns, rows, histories, items)
    recent, known = _latest(histories)
    if C and recent.shape[1]:
        covisits = covisits or Covisits(
            items.covisits[recent[:, 0]], items.covisit_pairs[recent[:, 0]]
        )
        _transitions(columns, rows, recent, known, items, covisits)
        _similarities(columns, candidates.vectors, recent, known, items)
        columns["cand_category_overlap"][:] = _category_overlap(rows, recent, known, items)
    if not real.all():
        out[:, ~real] = 0.0
    return np.ascontiguousarray(out.transpose(1, 2, 0))


def _latest(histories: Histories) -> tuple[RowArray, BoolArray]:
    """Return the rows of the latest items (B, n), newest first, and which of them are real."""
    n = min(LATEST, histories.rows.shape[1])
    at = histories.lengths[:, None] - 1 - np.arange(n)
    rows = histories.rows[np.arange(len(at))[:, None], np.maximum(at, 0)]
    known = (at >= 0) & (rows >= 0)
    return np.where(known, rows, 0), known


def _ranks(candidates: Candidates, source: str) -> NDArray[np.int32]:
    if source not in candidates.sources:
        return np.full(candidates.rows.shape, -1, np.int32)
    ranks: NDArray[np.int32] = candidates.source_ranks[..., candidates.sources.index(source)]
    return ranks


def _scores(candidates: Candidates, source: str) -> FloatArray:
    if source not in candidates.sources:
        return np.zeros(candidates.rows.shape, np.float32)
    scores: FloatArray = candidates.source_scores[..., candidates.sources.index(source)]
    return scores


def _log_score(scores: NDArray[np.floating]) -> NDArray[np.floating]:
    logs: NDArray[np.floating] = np.log1p(_SCORE_FACTOR * np.fmax(scores, 0.0))  # NaN reads 0
    return logs


def _transitions(
    columns: dict[str, FloatArray],
    rows: RowArray,
    recent: RowArray,
    known: BoolArray,
    items: Items,
    covisits: Covisits,
) -> None:
    """Look candidates up in the lists of the latest items: neighbours and co-visits."""
    B, C = rows.shape
    M = items.neighbours.shape[1]
    found = {name: np.zeros((B, C)) for name in _TRANSITIONS}
    places = _scratch(len(items))
    for b in range(B):
        real = np.flatnonzero(rows[b] >= 0)
        places[rows[b, real]] = real
        ages = np.flatnonzero(known[b])
        latest = recent[b, ages]
        at = places[items.neighbours[latest]].ravel()
        if known[b, 0]:
            came = places[covisits.rows[b]]
            hit = came >= 0
            columns["cand_covisits"][b, came[hit]] = np.log1p(covisits.pairs[b, hit])
        places[rows[b, real]] = -1
        hits = np.flatnonzero(at >= 0)
        values = items.neighbour_scores[latest].ravel()[hits]
        age = ages[hits // M]
        for name, weights in _TRANSITIONS.items():
            found[name][b] = np.bincount(at[hits], values * weights[age], C)
    for name, total in found.items():
        columns[name][:] = _log_score(total)


def _ease(
    columns: dict[str, FloatArray], rows: RowArray, histories: Histories, items: Items
) -> None:
    """Add up what the history, and its latest items, speak for by EASE."""
    B, C = rows.shape
    if not C or not items.ease.shape[1]:
        return
    places = _scratch(len(items))
    for b in range(B):
        real = np.flatnonzero(rows[b] >= 0)
        places[rows[b, real]] = real
        history = histories.rows[b, : histories.lengths[b]]
        held = history[history >= 0][::-1]
        at = places[items.ease[held]]  # (L, E)
        weights = items.ease_weights[held]
        for name, n in (("cand_ease", len(held)), ("cand_ease_20", LATEST)):
            hit = at[:n] >= 0
            total = np.bincount(at[:n][hit], weights[:n][hit], C).astype(np.float64)
            columns[name][b] = _log_score(total)
        places[rows[b, real]] = -1


_local = threading.local()


def _scratch(N: int) -> NDArray[np.int32]:
    """Return this thread's array of -1 for N rows, and one more for the padding row -1.

    Whoever writes to it restores -1: filling one for each request would cost more than all else
    in a catalogue of millions.
    """
    places: NDArray[np.int32] | None = getattr(_local, "places", None)
    if places is None or len(places) != N + 1:
        places = np.full(N + 1, -1, np.int32)
        _local.places = places
    return places


def _similarities(
    columns: dict[str, FloatArray],
    vectors: FloatArray,
    recent: RowArray,
    known: BoolArray,
    items: Items,
) -> None:
    """Write cosines of candidate vectors with those of the latest items: last, best and mean."""
    latest: NDArray[np.floating] = items.vectors[recent]  # (B, n, d)
    latest = latest / np.maximum(_norms(latest), 1e-12)[..., None] * known[..., None]
    cosine = np.matmul(latest, vectors.transpose(0, 2, 1))  # (B, n, C)
    cosine /= np.maximum(_norms(vectors), 1e-12)[:, None]
    columns["cand_similarity_1"][:] = cosine[:, 0]
    columns["cand_similarity_mean"][:] = cosine.sum(axis=1) / np.maximum(
        known.sum(axis=1, keepdims=True), 1
    )
    if not known.all():
        cosine[~known] = -1.0
    columns["cand_similarity_max"][:] = cosine.max(axis=1)


def _norms(vectors: NDArray[np.floating]) -> FloatArray:
    norms: FloatArray = np.sqrt(np.einsum("...d,...d->...", vectors, vectors))
    return norms


def _category_overlap(
    rows: RowArray, recent: RowArray, known: BoolArray, items: Items
) -> FloatArray:
    """Return the cosine of a candidate's categories with the sum over the latest 5 items."""
    n = min(_CATEGORY_LATEST, recent.shape[1])
    held = items.categories[recent[:, :n]].astype(np.float32) * known[:, :n, None]
    profile = held.sum(axis=1)  # (B, K)
    own = items.categories[rows].astype(np.float32)  # (B, C, K)
    dot = np.matmul(own, profile[:, :, None])[..., 0]
    norms = np.sqrt(own.sum(axis=2)) * _norms(profile)[:, None]
    overlap: FloatArray = dot / np.maximum(norms, 1e-12)
    return overlap
