"""The ranker as ``ranker.onnx``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.spec import names
from ranking.fine.model import Ranker
from ranking.fine.train import INPUTS
from ranking.onnx_export import Parity, export, parity

RANKER = "ranker.onnx"


def export_ranker(
    model: Ranker,
    directory: Path,
    feeds: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, str],
    tolerance: float,
) -> Parity:
    """Write the ranker and compare it with torch on `feeds`.

    Parameters
    ----------
    model : Ranker
        In evaluation mode.
    directory : Path
    feeds : mapping of str to array
        Real inputs, see :func:`ranking.fine.inputs.ranker_inputs`.
    metadata : mapping of str to str
        Stored in the file.
    tolerance : float
        See :func:`ranking.onnx_export.parity`.

    Returns
    -------
    Parity
        On the scores of candidates; what a padded place gets means nothing.
    """
    B, C, L = 2, 3, 4
    d = feeds["candidates"].shape[2]
    shapes = {
        "user": (B, len(names("user"))),
        "item": (B, C, len(names("item"))),
        "pair": (B, C, len(names("cross")) + len(names("candidate"))),
        "candidates": (B, C, d),
        "history": (B, L, d),
        "values": (B, L),
        "log_gaps": (B, L),
        "mask": (B, C),
    }
    examples = {
        name: np.array([4, 0], np.int64) if name == "lengths" else np.ones(shapes[name], np.float32)
        for name in INPUTS
    }
    axes = {
        "user": ("batch", None),
        "item": ("batch", "candidates", None),
        "pair": ("batch", "candidates", None),
        "candidates": ("batch", "candidates", None),
        "history": ("batch", "events", None),
        "values": ("batch", "events"),
        "log_gaps": ("batch", "events"),
        "lengths": ("batch",),
        "mask": ("batch", "candidates"),
    }
    path = directory / RANKER
    export(model, path, examples, axes, "scores", ("batch", "candidates"), metadata)
    return parity(model, path, {name: feeds[name] for name in INPUTS}, tolerance)
