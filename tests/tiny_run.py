"""A model run with small real models over whatever items a database has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from tiny_models import item_tower, ranker, user_tower

from features.spec import spec_hash
from features.store import read_catalogue, read_interactions
from ranking.retrieval.attributes import item_attributes, learn_attributes
from ranking.retrieval.retriever import RetrievalConfig

D = 16
_NEIGHBOURS = 8


def make_run(connection: psycopg.Connection[Any], path: Path, constant: float = 0.0) -> Path:
    """Write a run directory as training would; `constant` is added to every ranker score."""
    path.mkdir(parents=True)
    catalogue = read_catalogue(connection)
    vocabulary = learn_attributes(catalogue.fields, catalogue.categories)
    known = item_attributes(catalogue.fields, catalogue.categories, vocabulary)
    N = len(catalogue.item_keys)
    item_tower(path / "item_tower.onnx", known.shape[1], D)
    user_tower(path / "user_tower.onnx", D)
    ranker(path / "ranker.onnx", D, constant)
    id_vectors = np.random.default_rng(0).standard_normal((N, D)).astype(np.float32)
    weights = np.random.default_rng(0).standard_normal((known.shape[1], D)).astype(np.float32)
    events = read_interactions(connection)
    rows = np.searchsorted(catalogue.item_keys, events.item_keys)
    popular = np.argsort(-np.bincount(rows, minlength=N), kind="stable")[:100].astype(np.int32)
    neighbours = (np.arange(N)[:, None] + np.arange(1, _NEIGHBOURS + 1)) % max(N, 1)
    arrays = {
        "item_keys": catalogue.item_keys,
        "id_vectors": id_vectors,
        "item_vectors": (known @ weights + id_vectors).astype(np.float32),
        "neighbours": neighbours.astype(np.int32),
        "neighbour_scores": np.ones((N, _NEIGHBOURS), np.float32),
        "trending": popular,
        "trending_scores": np.linspace(1, 0, len(popular), dtype=np.float32),
    }
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array, allow_pickle=False)
    parity = {"max_difference": 0.0, "mean_difference": 0.0, "scale": 1.0}
    training = {
        "run": path.name,
        "holdout": "none",
        "spec_hash": spec_hash(),
        "config": {"retrieval": RetrievalConfig().model_dump()},
        "item_attributes": vocabulary.to_dict(),
        "parity": {f"{name}.onnx": parity for name in ("item_tower", "user_tower", "ranker")},
    }
    (path / "training.json").write_text(json.dumps(training))
    return path
