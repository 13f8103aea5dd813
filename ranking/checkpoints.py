"""Where trainings keep their state until they end: ``models/.checkpoint-<config>/``.

A file is named after all that its training depends on, so what was kept of another config, data,
code or version is never taken. When a training ends well and no other runs, all are removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ranking
from ranking.training_config import TrainingConfig

ASIDE = ".training-"
"""Begins the name of a run that is being written."""

_CHECKPOINT = ".checkpoint-"


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The folder of one config."""

    folder: Path

    def file(self, name: str, *arrays: NDArray[Any]) -> Path:
        """Return the file of one training: `name`, and a hash of the arrays it learns from."""
        digest = hashlib.sha256(name.encode())
        for array in arrays:
            digest.update(f"{array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
        return self.folder / f"{name}-{digest.hexdigest()[:16]}.npz"


@contextmanager
def checkpoints(home: Path, config: TrainingConfig) -> Iterator[Checkpoints]:
    """Yield where a training with `config` keeps its state; remove it when that ends well."""
    models = home / "models"
    digest = hashlib.sha256(config.model_dump_json().encode())
    digest.update(f"{torch.__version__} {np.__version__}".encode())
    for module in sorted(Path(ranking.__path__[0]).rglob("*.py")):
        digest.update(module.read_bytes())
    with (home / "training.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield Checkpoints(models / f"{_CHECKPOINT}{digest.hexdigest()[:16]}")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # the training that still runs removes ours with its own
        for prefix in (_CHECKPOINT, ASIDE):
            for stale in models.glob(f"{prefix}*"):
                shutil.rmtree(stale)
