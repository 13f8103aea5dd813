"""A model run like those of training, from small real models and a real catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models

from features.spec import spec_hash
from features.states import Catalogue
from ranking.onnx_model import OnnxModel
from ranking.retrieval.attributes import learn_attributes
from ranking.retrieval.retriever import RetrievalConfig
from ranking.retrieval.tower import OnnxItemTower

D = 8


def write_run(directory: Path, catalogue: Catalogue, n: int | None = None, **changes: Any) -> Path:
    """Write a run that knows the first `n` items; `changes` replace keys of training.json."""
    directory.mkdir()
    n = len(catalogue.item_keys) if n is None else n
    vocabulary = learn_attributes(catalogue.fields, catalogue.categories)
    tiny_models.user_tower(directory / "user_tower.onnx", D)
    tiny_models.ranker(directory / "ranker.onnx", D)
    tiny_models.item_tower(directory / "item_tower.onnx", vocabulary.width, D)
    rng = np.random.default_rng(0)
    id_vectors = rng.standard_normal((n, D)).astype(np.float32)
    tower = OnnxItemTower(OnnxModel(directory / "item_tower.onnx"), vocabulary)
    neighbours = rng.integers(-1, n, (n, 10)).astype(np.int32)
    arrays = {
        "item_keys": catalogue.item_keys[:n],
        "item_vectors": tower(catalogue.fields[:n], catalogue.categories[:n], id_vectors),
        "id_vectors": id_vectors,
        "neighbours": neighbours,
        "neighbour_scores": np.where(neighbours >= 0, 0.5, 0).astype(np.float32),
        "trending": rng.permutation(n)[:50].astype(np.int32),
        "trending_scores": np.linspace(1, 0.5, min(n, 50)).astype(np.float32),
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    same = {"max_difference": 0.0, "mean_difference": 0.0, "scale": 1.0, "values": 1}
    training = {
        "run": directory.name,
        "holdout": "last",
        "spec_hash": spec_hash(),
        "config": {"retrieval": RetrievalConfig(candidates=60).model_dump()},
        "item_attributes": vocabulary.to_dict(),
        "parity": dict.fromkeys(("item_tower.onnx", "user_tower.onnx", "ranker.onnx"), same),
        **changes,
    }
    (directory / "training.json").write_text(json.dumps(training))
    return directory
