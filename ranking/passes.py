"""The passes of one training over its data: what each gave, when to stop, where to go on.

The state after each pass is kept in a file, so that a training that was killed goes on there.
The random numbers of a pass must come from the seed and the number of the pass alone; then a
training that went on ends with the very weights of one that was never stopped.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ranking.optimiser import Optimiser
from ranking.types import Progress


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over the training data gave.

    Attributes
    ----------
    loss : float
        Mean over the pass, while the weights moved.
    ndcg_at_10 : float or None
        On the validation events after the pass; None without any.
    seconds : float
        Wall time, validation included.
    """

    loss: float
    ndcg_at_10: float | None
    seconds: float

    def __str__(self) -> str:
        """Return the figures as progress shows them."""
        ndcg = "" if self.ndcg_at_10 is None else f", NDCG@10 {self.ndcg_at_10:.4f}"
        return f"loss {self.loss:.3f}{ndcg}"


class Passes:
    """The passes of one training.

    Parameters
    ----------
    step : str
        Name of the training in progress reports.
    wanted : int
        Passes in all.
    patience : int
        Passes without a better validation figure after which it ends and the weights of the best
        pass are taken; 0 runs all and takes the last.
    progress : callable, optional
    file : Path, optional
        Where the state after each pass is kept.
    writes : bool
        False in the processes that only read the file.

    Attributes
    ----------
    curve : list of Pass
        The passes so far, those of before an interruption included.
    """

    def __init__(
        self,
        step: str,
        wanted: int,
        patience: int = 0,
        progress: Progress | None = None,
        file: Path | None = None,
        writes: bool = True,
    ) -> None:
        self.curve: list[Pass] = []
        self._step = step
        self._wanted = wanted
        self._patience = patience
        self._progress = progress
        self._file = file
        self._writes = writes
        self._best: dict[str, Tensor] | None = None
        self._since = time.perf_counter()
        self._at = (0, 0)

    @property
    def done(self) -> bool:
        """Whether all passes were run, or the last ones brought nothing better."""
        behind = len(self.curve) - 1 - self._best_pass() if self.curve else 0
        return len(self.curve) >= self._wanted or (0 < self._patience <= behind)

    def resume(self, model: nn.Module, optimiser: Optimiser) -> None:
        """Go on from the state in the file, if there is one."""
        self._since = time.perf_counter()
        if self._file is None or not self._file.exists():
            return
        try:
            with np.load(self._file, allow_pickle=False) as stored:
                state = {name: stored[name] for name in stored.files}
        except (OSError, EOFError, ValueError, BadZipFile):
            return  # a damaged file costs the passes that it held, not the training
        self.curve = [Pass(**line) for line in json.loads(str(state["curve"]))]
        model.load_state_dict(_part(state, "model"))
        optimiser.load_state_dict(_part(state, "optimiser"))
        self._best = _part(state, "best") or None

    def step(self, done: int, total: int, loss: float | None = None) -> None:
        """Report a step of the pass that runs, with the loss of the pass so far."""
        if self._progress is None:
            return
        self._at = (done, total)
        detail = f"pass {len(self.curve) + 1}/{self._wanted}"
        if loss is not None:
            detail += f": loss {loss:.3f}"
        if self.curve:
            detail += f"; before: {self.curve[-1]}"
        self._progress(self._step, done, total, detail)

    def end(
        self, model: nn.Module, optimiser: Optimiser, loss: float, ndcg: float | None = None
    ) -> None:
        """Note what a pass gave and keep the state.

        Parameters
        ----------
        model : nn.Module
        optimiser : Optimiser
        loss : float
            Mean over the pass.
        ndcg : float, optional
            NDCG@10 on the validation events.
        """
        now = time.perf_counter()
        self.curve.append(Pass(loss, ndcg, round(now - self._since, 3)))
        self._since = now
        if self._progress is not None:
            detail = f"pass {len(self.curve)}/{self._wanted}: {self.curve[-1]}"
            self._progress(self._step, *self._at, detail)
        if self._patience and ndcg is not None and self._best_pass() == len(self.curve) - 1:
            self._best = {name: value.cpu().clone() for name, value in model.state_dict().items()}
        if self._file is None or not self._writes:
            return
        parts = {
            "model": model.state_dict(),
            "optimiser": optimiser.state_dict(),
            "best": self._best or {},
        }
        state = {
            f"{part}/{name}": value.cpu().numpy()
            for part, values in parts.items()
            for name, value in values.items()
        }
        state["curve"] = np.array(json.dumps([asdict(each) for each in self.curve]))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        aside = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        with aside.open("wb") as stream:
            np.savez(stream, allow_pickle=False, **state)
        aside.replace(self._file)

    def take_best(self, model: nn.Module) -> None:
        """Give `model` the weights of the best pass; those of the last where none was measured."""
        if self._best is not None:
            model.load_state_dict(self._best)

    def _best_pass(self) -> int:
        """Return the first of the passes with the best figure; the last one without figures."""
        figures = [each.ndcg_at_10 for each in self.curve if each.ndcg_at_10 is not None]
        return figures.index(max(figures)) if figures else len(self.curve) - 1


def _part(state: dict[str, NDArray[Any]], part: str) -> dict[str, Tensor]:
    """Return the tensors of one part of a stored state."""
    return {
        name.removeprefix(f"{part}/"): torch.from_numpy(array)
        for name, array in state.items()
        if name.startswith(f"{part}/")
    }
