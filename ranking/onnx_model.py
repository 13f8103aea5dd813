"""ONNX models, run by ONNX Runtime on CPU or CUDA."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from features.errors import ConfigError, ReleaseError, SpecMismatch

_CUDA = "CUDAExecutionProvider"
_DTYPES = {
    "tensor(float)": np.dtype(np.float32),
    "tensor(double)": np.dtype(np.float64),
    "tensor(int64)": np.dtype(np.int64),
    "tensor(int32)": np.dtype(np.int32),
    "tensor(uint8)": np.dtype(np.uint8),
    "tensor(bool)": np.dtype(np.bool_),
}


class OnnxConfig(BaseModel):
    """How ONNX Runtime runs a model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: Literal["auto", "cpu", "cuda"] = Field(
        default="auto",
        description="Execution provider; auto: CUDA where this machine has it, else CPU.",
    )
    threads: int = Field(
        default=1,
        ge=1,
        description="Threads inside one operator. One: replicas scale, threads contend.",
    )
    cpu_memory_arena: bool = Field(
        default=False,
        description="Keep freed CPU memory for later runs. Off: one large batch does not stay "
        "resident for ever.",
    )


class OnnxModel:
    """One loaded model with its declared inputs checked on every run.

    Parameters
    ----------
    path : Path
        The .onnx file. Its checksum is the release loader's business.
    config : OnnxConfig

    Raises
    ------
    ReleaseError
        If ONNX Runtime cannot load the file.
    ConfigError
        If ``provider="cuda"`` and the model does not run there.
    """

    def __init__(self, path: Path, config: OnnxConfig | None = None) -> None:
        config = config or OnnxConfig()
        options = ort.SessionOptions()
        options.intra_op_num_threads = config.threads
        options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = config.cpu_memory_arena
        options.log_severity_level = 3
        # A thread that spins between requests takes a core from the rest of the replica.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        providers = _providers(config.provider)
        try:
            self._session = ort.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # ONNX Runtime's exceptions share no public base class.
            raise ReleaseError(f"{path.name} cannot be loaded by ONNX Runtime: {error}") from error
        self.provider: str = self._session.get_providers()[0]
        if config.provider == "cuda" and self.provider != _CUDA:
            raise ConfigError(
                f"onnx.provider is 'cuda', but ONNX Runtime runs {path.name} on {self.provider}: "
                "CUDA or cuDNN did not load; check `nvidia-smi` and the extra `gpu`, or set it to "
                "'auto'"
            )
        self.path = path
        self.inputs = {node.name: node for node in self._session.get_inputs()}
        self.outputs = tuple(node.name for node in self._session.get_outputs())
        self._expected = {
            name: (_DTYPES[node.type], len(node.shape)) for name, node in self.inputs.items()
        }

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Run the model.

        Parameters
        ----------
        feeds : mapping of str to array
            One array for each declared input, of its dtype and number of axes.

        Returns
        -------
        list of array
            In the order of :attr:`outputs`.

        Raises
        ------
        SpecMismatch
            If names, dtypes or shapes differ from those that the model declares.
        """
        if feeds.keys() != self._expected.keys():
            raise SpecMismatch(
                f"{self.path.name} reads inputs {sorted(self._expected)}, got {sorted(feeds)}; "
                "build the release with the code that trained it"
            )
        for name, array in feeds.items():
            dtype, axes = self._expected[name]
            if array.dtype != dtype or array.ndim != axes:
                raise SpecMismatch(
                    f"{self.path.name}: input {name!r} must be {dtype} with {axes} axes, "
                    f"got {array.dtype} of shape {array.shape}"
                )
        try:
            return list(self._session.run(None, feeds))
        except Exception as error:  # ONNX Runtime's exceptions share no public base class.
            shapes = {name: array.shape for name, array in feeds.items()}
            raise SpecMismatch(
                f"{self.path.name} failed on inputs of shapes {shapes}: {error}"
            ) from error


def _providers(wanted: str) -> list[str]:
    has_cuda = _CUDA in ort.get_available_providers()
    if wanted == "cuda" and not has_cuda:
        raise ConfigError(
            "onnx.provider is 'cuda', but this ONNX Runtime has no CUDA provider; "
            "install the extra `gpu` on a machine with a GPU or set it to 'auto'"
        )
    if not has_cuda or wanted == "cpu":
        return ["CPUExecutionProvider"]
    _load_cuda()
    return [_CUDA, "CPUExecutionProvider"]


@functools.cache
def _load_cuda() -> None:
    """Load the CUDA and cuDNN that the extra `gpu` installs, which no loader path names."""
    with contextlib.redirect_stdout(sys.stderr):  # it prints what it does not find
        ort.preload_dlls()
