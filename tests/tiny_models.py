"""Small real ONNX models with the inputs and outputs of a release's three."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from features.spec import names

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
        [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()],
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
            node("Add", ["value", "gap"], ["nothing"]),
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


def simple(path: Path, width: int, scale: float = 1.0) -> Path:
    """ann + scale * mean item feature."""
    return _save(
        path,
        [
            helper.make_node("ReduceMean", ["item"], ["mean"], axes=[2], keepdims=0),
            helper.make_node("Mul", ["mean", "scale"], ["scaled"]),
            helper.make_node("Add", ["scaled", "ann"], ["scores"]),
        ],
        {"ann": (FLOAT, ["B", "C"]), "item": (FLOAT, ["B", "C", width])},
        ("scores", ["B", "C"]),
        {"scale": np.array(scale, np.float32)},
    )


def ranker(path: Path, d: int, constant: float = 0.0) -> Path:
    """The first pair feature after the cross features + `constant`; reads every input."""
    node = helper.make_node
    whole = ["user", "item", "candidates", "history", "values", "log_gaps", "mask"]
    cross = len(names("cross"))
    return _save(
        path,
        [
            node("Gather", ["pair", "first"], ["ann"], axis=2),
            node("Cast", ["lengths"], ["length"], to=FLOAT),
            *[node("ReduceSum", [name], [f"{name} sum"], keepdims=0) for name in whole],
            node("ReduceSum", ["length"], ["length sum"], keepdims=0),
            node("Sum", [f"{name} sum" for name in [*whole, "length"]], ["everything"]),
            node("Where", ["never", "everything", "constant"], ["shift"]),
            node("Add", ["ann", "shift"], ["scores"]),
        ],
        {
            "user": (FLOAT, ["B", len(names("user"))]),
            "item": (FLOAT, ["B", "C", len(names("item"))]),
            "pair": (FLOAT, ["B", "C", cross + len(names("candidate"))]),
            "candidates": (FLOAT, ["B", "C", d]),
            "history": (FLOAT, ["B", "L", d]),
            "values": (FLOAT, ["B", "L"]),
            "log_gaps": (FLOAT, ["B", "L"]),
            "lengths": (INT64, ["B"]),
            "mask": (FLOAT, ["B", "C"]),
        },
        ("scores", ["B", "C"]),
        {
            "first": np.array(cross),
            "never": np.array(False),
            "constant": np.array(constant, np.float32),
        },
    )
