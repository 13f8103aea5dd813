"""Real ONNX models: run, refuse wrong inputs, refuse what is no model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import tiny_models

from features.errors import ConfigError, ReleaseError, SpecMismatch
from ranking.onnx_model import OnnxConfig, OnnxModel


@pytest.fixture
def model(tmp_path: Path) -> OnnxModel:
    return OnnxModel(tiny_models.simple(tmp_path / "simple.onnx", 3, scale=2.0))


def feeds(B: int = 2, C: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "ann": rng.standard_normal((B, C)).astype(np.float32),
        "item": rng.standard_normal((B, C, 3)).astype(np.float32),
    }


@pytest.mark.parametrize("shape", [(1, 1), (2, 4), (7, 300)])
def test_it_computes_for_any_batch(model: OnnxModel, shape: tuple[int, int]) -> None:
    given = feeds(*shape)
    (scores,) = model.run(given)
    assert scores == pytest.approx(given["ann"] + 2 * given["item"].mean(axis=2), abs=1e-5)
    assert model.outputs == ("scores",)
    assert model.provider in ("CPUExecutionProvider", "CUDAExecutionProvider")


def test_missing_and_surplus_inputs_are_named(model: OnnxModel) -> None:
    with pytest.raises(SpecMismatch, match=r"reads inputs \['ann', 'item'\], got \['ann'\]"):
        model.run({"ann": feeds()["ann"]})
    with pytest.raises(SpecMismatch, match="more"):
        model.run({**feeds(), "more": np.zeros(1, np.float32)})


def test_wrong_type_axes_or_width_are_named(model: OnnxModel) -> None:
    with pytest.raises(SpecMismatch, match="'ann' must be float32 with 2 axes, got float64"):
        model.run({**feeds(), "ann": np.zeros((2, 4))})
    with pytest.raises(SpecMismatch, match=r"'item' must be float32 with 3 axes"):
        model.run({**feeds(), "item": np.zeros((2, 4), np.float32)})
    with pytest.raises(SpecMismatch, match=r"simple.onnx failed on inputs of shapes"):
        model.run({**feeds(), "item": np.zeros((2, 4, 9), np.float32)})


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"\x08\x09 no model")
    with pytest.raises(ReleaseError, match=r"bad\.onnx cannot be loaded"):
        OnnxModel(tmp_path / "bad.onnx")


@pytest.mark.skipif(
    "CUDAExecutionProvider" in ort.get_available_providers(), reason="this machine has CUDA"
)
def test_cuda_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    path = tiny_models.simple(tmp_path / "simple.onnx", 3)
    with pytest.raises(ConfigError, match="install the extra `gpu`"):
        OnnxModel(path, OnnxConfig(provider="cuda"))
