"""The two towers as ``item_tower.onnx`` and ``user_tower.onnx``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ranking.onnx_export import Parity, export, parity
from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import tower_inputs
from ranking.types import FloatArray, Histories

ITEM_TOWER = "item_tower.onnx"
USER_TOWER = "user_tower.onnx"


def export_item_tower(
    model: TwoTower, directory: Path, metadata: Mapping[str, str], tolerance: float
) -> tuple[FloatArray, Parity]:
    """Write the item tower and return the vectors of all items.

    Inputs ``attributes`` (n, Fa) and ``id_vectors`` (n, d), output ``item_vectors`` (n, d).

    Returns
    -------
    vectors : (N, d) float32
    parity : Parity
        Over all items.
    """
    feeds = {
        "attributes": model.attributes.numpy(),
        "id_vectors": model.ids.detach().numpy(),
    }
    # Two rows at least: the exporter takes an axis of length 1 for fixed.
    examples = {name: np.zeros((2, array.shape[1]), np.float32) for name, array in feeds.items()}
    axes = dict.fromkeys(feeds, ("items", None))
    path = directory / ITEM_TOWER
    export(model.items, path, examples, axes, "item_vectors", ("items", None), metadata)
    with torch.no_grad():
        vectors: FloatArray = model.item_vectors().numpy()
    return vectors, parity(model.items, path, feeds, tolerance)


def export_user_tower(
    model: TwoTower,
    directory: Path,
    histories: Histories,
    vectors: FloatArray,
    metadata: Mapping[str, str],
    tolerance: float,
) -> Parity:
    """Write the user tower and compare it with torch on `histories`.

    Inputs are those of :func:`ranking.retrieval.sequence.tower_inputs`, output ``user_vectors``
    (B, d).
    """
    d = vectors.shape[1]
    examples: dict[str, NDArray[Any]] = {
        "history": np.zeros((2, 3, d), np.float32),
        "values": np.zeros((2, 3), np.float32),
        "log_gaps": np.zeros((2, 3), np.float32),
        "lengths": np.array([3, 1], np.int64),
    }
    axes: dict[str, tuple[str | None, ...]] = {
        "history": ("batch", "events", None),
        "values": ("batch", "events"),
        "log_gaps": ("batch", "events"),
        "lengths": ("batch",),
    }
    path = directory / USER_TOWER
    export(model.users, path, examples, axes, "user_vectors", ("batch", None), metadata)
    return parity(model.users, path, tower_inputs(histories, vectors), tolerance)
