"""The inputs of ``ranker.onnx``, built alike for training and serving."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranking.fine.candidate_features import candidate_features
from ranking.retrieval.sequence import history_vectors, latest, log_gaps
from ranking.types import Candidates, Covisits, FloatArray, Histories, Items

# Latest events that the ranker's target attention reads.
RANKER_EVENTS = 32


def ranker_inputs(
    candidates: Candidates,
    histories: Histories,
    users: FloatArray,
    item_features: FloatArray,
    cross: FloatArray,
    items: Items,
    covisits: Covisits | None = None,
) -> dict[str, NDArray[Any]]:
    """Return all inputs of ``ranker.onnx``.

    Parameters
    ----------
    candidates : Candidates
    histories : Histories
        That the candidates were retrieved for.
    users : (B, Fu) float32
        See :func:`features.encode.encode_users`.
    item_features : (B, C, Fi) float32
        See :func:`features.encode.encode_items`; arbitrary where padded.
    cross : (B, C, Fx) float32
        See :func:`features.encode.encode_cross`.
    items : Items
        State of the catalogue that the rows refer to.
    covisits : Covisits or None
        As of each request; None takes those of `items`.

    Returns
    -------
    dict of str to array
        ``user`` (B, Fu), ``item`` (B, C, Fi), ``pair`` (B, C, Fx + Fk), ``candidates``
        (B, C, d), ``history`` (B, L, d), ``values`` (B, L), ``log_gaps`` (B, L), all float32;
        ``lengths`` (B,) int64; ``mask`` (B, C) float32, 1 for a candidate. L is at most
        :data:`RANKER_EVENTS` and at least 1.
    """
    recent = latest(histories, RANKER_EVENTS)
    real = candidates.rows >= 0
    pair = np.concatenate(
        [cross, candidate_features(candidates, histories, items, covisits)], axis=2
    )
    vectors = candidates.vectors
    if not real.all():
        item_features = np.where(real[..., None], item_features, np.float32(0))
        vectors = np.where(real[..., None], vectors, np.float32(0))
    return {
        "user": users,
        "item": item_features,
        "pair": pair,
        "candidates": vectors,
        "history": history_vectors(recent.rows, items.vectors),
        "values": recent.values,
        "log_gaps": log_gaps(recent.times, recent.lengths, recent.now),
        "lengths": recent.lengths,
        "mask": real.astype(np.float32),
    }
