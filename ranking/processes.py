"""Training in one process or in several of one machine, on the CPU or on GPUs.

With one process the work is called right here. With more, this process starts them, passes their
progress on and waits: as soon as one fails, all are ended and one error says why. They end, too,
when this process is killed. Each computes its part of every batch, and :meth:`Group.add` adds up
the gradients, so that all of them take the same steps.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from features.errors import ConfigError, TrainingError
from ranking.types import Progress

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

Job = TypeVar("Job")
Result = TypeVar("Result")

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one training runs on.

    Attributes
    ----------
    device : str
        ``cpu`` or ``cuda``.
    processes : int
    """

    device: str = "cpu"
    processes: int = 1


def hardware(device: Literal["auto", "cpu", "cuda"], processes: int) -> Hardware:
    """Return what the settings ``training.device`` and ``training.processes`` stand for here.

    Raises
    ------
    ConfigError
        There is no GPU for each process that was to have one.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not gpus):
        return Hardware("cpu", processes)
    if processes > gpus:
        raise ConfigError(
            f"training.device = {device!r} with training.processes = {processes}: torch finds "
            f"{gpus} GPUs and each process needs its own; lower training.processes, or set "
            "training.device to 'cpu'"
        )
    return Hardware("cuda", processes)


@dataclass(frozen=True, slots=True)
class Group:
    """One process among those that train together, as it sees itself.

    Attributes
    ----------
    rank : int
        Its number from 0; 0 speaks for all.
    size : int
        How many there are.
    device : torch.device
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def add(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each gradient by its sum over all processes."""
        if self.size == 1:
            return
        gradients = torch.cat(
            [
                torch.zeros_like(one).reshape(-1) if one.grad is None else one.grad.reshape(-1)
                for one in parameters
            ]
        )
        dist.all_reduce(gradients)
        parts = torch.split(gradients, [one.numel() for one in parameters])
        for one, part in zip(parameters, parts, strict=True):
            one.grad = part.view_as(one)

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of `value` over all processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def first(self, value: float | None) -> float | None:
        """Return the value that the first process has."""
        if self.size == 1:
            return value
        told = torch.tensor([value is not None, value or 0.0], device=self.device)
        dist.broadcast(told, 0)
        return float(told[1]) if told[0] else None


def run(
    work: Callable[[Job, Group, Progress | None], Result],
    job: Job,
    on: Hardware,
    progress: Progress | None = None,
) -> Result:
    """Do `work` in every process and return the result of the first.

    Parameters
    ----------
    work : callable
        A function of a module, called as (job, group, progress); all but the first process get
        no progress.
    job : object
        Arrays and plain values; no tensors.
    on : Hardware
    progress : callable, optional

    Raises
    ------
    TrainingError
        A process failed; the others were ended.
    """
    if on.processes == 1:
        device = torch.device(on.device)
        return work(job, Group(device=device), progress)
    context = multiprocessing.get_context("spawn")
    started: list[tuple[SpawnProcess, Connection]] = []
    with tempfile.TemporaryDirectory(prefix="shortlist-train-") as meeting:
        try:
            for rank in range(on.processes):
                here, there = context.Pipe(duplex=False)
                process = context.Process(
                    target=_process,
                    args=(work, job, on, rank, torch.get_num_threads(), meeting, there),
                    name=f"training process {rank + 1} of {on.processes}",
                    daemon=True,
                )
                process.start()
                there.close()
                started.append((process, here))
            result: Result = _follow(started, progress)
            return result
        finally:
            for process, here in started:
                process.kill()
                process.join()
                here.close()


def _follow(started: list[tuple[SpawnProcess, Connection]], progress: Progress | None) -> Any:  # noqa: ANN401  # whatever the work returns
    """Pass progress on until every process has ended well; return the result of the first."""
    result = None
    running = {here: process for process, here in started}
    while running:
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            process = running[ready]
            try:
                kind, told = ready.recv()
            except EOFError:
                process.join()
                raise _failure(process, f"ended with exit code {process.exitcode}") from None
            if kind == "progress":
                if progress is not None:
                    progress(*told)
                continue
            if kind == "error":
                raise _failure(process, _first_cause(told, running, ready))
            if process is started[0][0]:
                result = told
            del running[ready]
    return result


def _first_cause(told: str, running: dict[Connection, SpawnProcess], ready: Connection) -> str:
    """Return what a failed process said, and who ended silently, which others only notice."""
    for other, process in running.items():
        if other is not ready and process.exitcode not in (None, 0):
            told += f"\n{process.name} had ended with exit code {process.exitcode}"
    return told


def _failure(process: SpawnProcess, reason: str) -> TrainingError:
    return TrainingError(
        f"{process.name} failed: {reason}\nall of them were ended; 'shortlist train' goes on after "
        "the last whole pass, and training.processes = 1 needs no other process"
    )


def _process(
    work: Callable[[Any, Group, Progress | None], Any],
    job: object,
    on: Hardware,
    rank: int,
    threads: int,
    meeting: str,
    there: Connection,
) -> None:
    """Be one process of the group: join it, work, and send the outcome."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        torch.set_num_threads(threads)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
        device = torch.device("cpu")
        if on.device == "cuda":
            device = torch.device("cuda", rank)
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if on.device == "cuda" else "gloo",
            init_method=(Path(meeting) / "meeting").as_uri(),
            rank=rank,
            world_size=on.processes,
        )

        def report(step: str, done: int, total: int, detail: str = "") -> None:
            there.send(("progress", (step, done, total, detail)))

        result = work(job, Group(rank, on.processes, device), report if rank == 0 else None)
        there.send(("result", result if rank == 0 else None))
        dist.destroy_process_group()
    except BaseException as error:  # whatever it was, the parent must hear of it
        lines = traceback.format_exception_only(error)
        place = traceback.extract_tb(error.__traceback__)[-1]
        with suppress(OSError):
            there.send(("error", f"{''.join(lines).strip()} ({place.filename}:{place.lineno})"))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
