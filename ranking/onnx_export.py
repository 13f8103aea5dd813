"""Torch modules to ONNX files, with the difference between the two measured on real inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import nn

from features.errors import ReleaseError
from ranking.onnx_model import OnnxConfig, OnnxModel

# The oldest that has every operator used here as one node (LayerNormalization, Swish-free).
OPSET = 18


@dataclass(frozen=True, slots=True)
class Parity:
    """How far ONNX Runtime's output lies from torch's.

    Attributes
    ----------
    max_difference, mean_difference : float
        Of absolute differences, in the unit of the output.
    scale : float
        Standard deviation of torch's output.
    values : int
        Numbers compared.
    """

    max_difference: float
    mean_difference: float
    scale: float
    values: int


def export(
    module: nn.Module,
    path: Path,
    examples: Mapping[str, NDArray[Any]],
    dynamic: Mapping[str, Sequence[str | None]],
    output: str,
    dynamic_output: Sequence[str | None],
    metadata: Mapping[str, str],
) -> None:
    """Write `module` as one self-contained ONNX file.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode; its forward takes the inputs in the order of `examples`.
    path : Path
        Written; overwritten if it exists.
    examples : mapping of str to array
        One example of each input, by name; dynamic axes longer than 1.
    dynamic : mapping of str to sequence
        For each input, the name of each axis, None for one of fixed size.
    output : str
        Name of the only output.
    dynamic_output : sequence
        The names of its axes.
    metadata : mapping of str to str
        Stored in the file.
    """
    # The TorchScript path: the newer exporter takes 8 s a model where this one takes 0.2 s, of
    # 90 s that a first training on the sample may take. Both write the same operators.
    with _quiet():
        torch.onnx.export(
            module,
            tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in examples.values()),
            path,
            input_names=list(examples),
            output_names=[output],
            dynamic_axes={
                name: {place: axis for place, axis in enumerate(axes) if axis is not None}
                for name, axes in {**dynamic, output: dynamic_output}.items()
            },
            opset_version=OPSET,
            dynamo=False,
        )
    model = onnx.load(path)
    for key, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    path.write_bytes(model.SerializeToString(deterministic=True))
    onnx.checker.check_model(str(path))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says of its own age, which no caller can act on, from the user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def parity(
    module: nn.Module, path: Path, feeds: Mapping[str, NDArray[Any]], tolerance: float
) -> Parity:
    """Compare torch and ONNX Runtime on `feeds`.

    Parameters
    ----------
    module : nn.Module
        In evaluation mode.
    path : Path
        File of :func:`export`.
    feeds : mapping of str to array
        Real inputs, in the order of the module's forward.
    tolerance : float
        Largest difference allowed, relative to the standard deviation of torch's output.

    Returns
    -------
    Parity

    Raises
    ------
    ReleaseError
        If the difference exceeds the tolerance, or an output is not finite.
    """
    with torch.no_grad():
        expected = module(*(torch.from_numpy(np.ascontiguousarray(a)) for a in feeds.values()))
    wanted = expected.numpy()
    found = OnnxModel(path, OnnxConfig(provider="cpu")).run(feeds)[0]
    if not (np.isfinite(wanted).all() and np.isfinite(found).all()):
        raise ReleaseError(
            f"{path.name}: outputs that are not finite; training diverged: lower the learning rate"
        )
    differences = np.abs(wanted.astype(np.float64) - found)
    result = Parity(
        max_difference=float(differences.max(initial=0.0)),
        mean_difference=float(differences.mean()) if differences.size else 0.0,
        scale=float(wanted.std()) if wanted.size else 0.0,
        values=int(wanted.size),
    )
    if result.max_difference > tolerance * max(result.scale, 1e-3):
        raise ReleaseError(
            f"{path.name}: ONNX Runtime and torch differ by up to {result.max_difference:.3g}, "
            f"expected at most {tolerance:g} of the output's standard deviation "
            f"{result.scale:.3g}; report the model and the versions of torch and onnxruntime"
        )
    return result
