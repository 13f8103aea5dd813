"""Model runs like those of training, from small real models and a real catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import tiny_models
from numpy.typing import NDArray

from features.spec import spec_hash
from features.states import Catalogue
from features.store import read_catalogue, read_interactions
from ranking.onnx_model import OnnxModel
from ranking.retrieval.attributes import learn_attributes
from ranking.retrieval.retriever import RetrievalConfig
from ranking.retrieval.tower import OnnxItemTower

D = 8
MODELS = ("item_tower.onnx", "user_tower.onnx", "ranker.onnx")


def make_run(connection: psycopg.Connection[Any], path: Path, constant: float = 0.0) -> Path:
    """Write a run over all that a database has; `constant` is added to every ranker score."""
    catalogue = read_catalogue(connection)
    events = read_interactions(connection)
    rows = np.searchsorted(catalogue.item_keys, events.item_keys)
    counts = np.bincount(rows, minlength=len(catalogue.item_keys))
    return write_run(
        path,
        catalogue,
        trending=np.argsort(-counts, kind="stable")[:100],
        constant=constant,
        holdout="none",
        config={"retrieval": RetrievalConfig().model_dump()},
    )


def write_run(
    directory: Path,
    catalogue: Catalogue,
    n: int | None = None,
    trending: NDArray[np.int64] | None = None,
    constant: float = 0.0,
    **changes: Any,
) -> Path:
    """Write a run that knows the first `n` items; `changes` replace keys of training.json."""
    directory.mkdir(parents=True)
    n = len(catalogue.item_keys) if n is None else n
    vocabulary = learn_attributes(catalogue.fields, catalogue.categories)
    tiny_models.user_tower(directory / "user_tower.onnx", D)
    tiny_models.ranker(directory / "ranker.onnx", D, constant)
    tiny_models.item_tower(directory / "item_tower.onnx", vocabulary.width, D)
    rng = np.random.default_rng(0)
    id_vectors = rng.standard_normal((n, D)).astype(np.float32)
    tower = OnnxItemTower(OnnxModel(directory / "item_tower.onnx"), vocabulary)
    neighbours = rng.integers(-1, n, (n, 10)).astype(np.int32)
    trending = rng.permutation(n)[:50] if trending is None else trending
    arrays = {
        "item_keys": catalogue.item_keys[:n],
        "item_vectors": tower(catalogue.fields[:n], catalogue.categories[:n], id_vectors),
        "id_vectors": id_vectors,
        "neighbours": neighbours,
        "neighbour_scores": np.where(neighbours >= 0, 0.5, 0).astype(np.float32),
        "ease": neighbours[:, :4],
        "ease_weights": np.where(neighbours >= 0, 0.2, 0).astype(np.float32)[:, :4],
        "trending": trending.astype(np.int32),
        "trending_scores": np.linspace(1, 0.5, len(trending)).astype(np.float32),
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)
    same = {"max_difference": 0.0, "mean_difference": 0.0, "scale": 1.0, "values": 1}
    training = {
        "run": directory.name,
        "holdout": "last",
        "last_interaction": 2**31,
        "spec_hash": spec_hash(),
        "config": {"retrieval": RetrievalConfig(candidates=60).model_dump()},
        "item_attributes": vocabulary.to_dict(),
        "parity": dict.fromkeys(MODELS, same),
        **changes,
    }
    (directory / "training.json").write_text(json.dumps(training))
    return directory
