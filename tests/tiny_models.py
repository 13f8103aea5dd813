"""Small real ONNX models with the inputs and outputs of a release's three."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def _save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[str | int]]],
    output: tuple[str, list[str | int]],
    constants: dict[str, NDArray[np.generic]],
) -> Path:
    graph = helper.make_graph(
        nodes,
        path.stem,
        [
            helper.make_tensor_value_info(name, kind, shape)
            for name, (kind, shape) in inputs.items()
        ],
        [helper.make_tensor_value_info(output[0], FLOAT, output[1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def user_tower(path: Path, d: int) -> Path:
    """(sum of history vectors + a constant) / (length + 1); reads every input of the tower."""
    node = helper.make_node
    return _save(
        path,
        [
            node("ReduceSum", ["history", "one"], ["total"], keepdims=0),
            node("Add", ["total", "own"], ["sum"]),
            node("Cast", ["lengths"], ["length"], to=FLOAT),
            node("Unsqueeze", ["length", "one"], ["column"]),
            node("Add", ["column", "unit"], ["divisor"]),
            node("Div", ["sum", "divisor"], ["mean"]),
            node("ReduceSum", ["values", "one"], ["value"], keepdims=1),
            node("ReduceSum", ["log_gaps", "one"], ["gap"], keepdims=1),
            node("Mul", ["value", "zero"], ["no_value"]),
            node("Mul", ["gap", "zero"], ["no_gap"]),
            node("Add", ["no_value", "no_gap"], ["nothing"]),
            node("Where", ["never", "nothing", "mean"], ["user_vectors"]),
        ],
        {
            "history": (FLOAT, ["B", "L", d]),
            "values": (FLOAT, ["B", "L"]),
            "log_gaps": (FLOAT, ["B", "L"]),
            "lengths": (INT64, ["B"]),
        },
        ("user_vectors", ["B", d]),
        {
            "one": np.array([1]),
            "unit": np.array([1.0], np.float32),
            "zero": np.array([0.0], np.float32),
            "never": np.array([False]),
            "own": np.linspace(0.01, 0.02, d, dtype=np.float32),
        },
    )


def item_tower(path: Path, attributes: int, d: int, seed: int = 0) -> Path:
    """attributes @ W + id_vectors."""
    weights = np.random.default_rng(seed).standard_normal((attributes, d)).astype(np.float32)
    return _save(
        path,
        [
            helper.make_node("MatMul", ["attributes", "W"], ["known"]),
            helper.make_node("Add", ["known", "id_vectors"], ["item_vectors"]),
        ],
        {"attributes": (FLOAT, ["n", attributes]), "id_vectors": (FLOAT, ["n", d])},
        ("item_vectors", ["n", d]),
        {"W": weights},
    )


def ranker(path: Path, fi: int, scale: float = 1.0) -> Path:
    """ann_scores + scale * mean item feature."""
    return _save(
        path,
        [
            helper.make_node("ReduceMean", ["item"], ["mean"], axes=[2], keepdims=0),
            helper.make_node("Mul", ["mean", "scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "ann"], ["scores"]),
        ],
        {"ann": (FLOAT, ["B", "C"]), "item": (FLOAT, ["B", "C", fi])},
        ("scores", ["B", "C"]),
        {"scale": np.array(scale, np.float32)},
    )
