"""The fine stage in another process: arrays of many requests joined, and taken apart again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranking.fine.ranker import RankerInputs
from ranking.types import FloatArray

# Longer than any deadline: it only ends a wait for a replica that will never answer.
_PATIENCE_S = 30.0

Ask = Callable[[str, RankerInputs], Awaitable[FloatArray]]
"""Release and inputs to scores, in another process."""


@dataclass(frozen=True, slots=True)
class RankJob:
    """Inputs of one batch, and the release whose ranker they are for."""

    release: str
    inputs: RankerInputs


class RemoteRankers:
    """Rankers of releases behind a handle.

    Parameters
    ----------
    ask : callable
        Called in `loop`.
    loop : AbstractEventLoop
        Of the replica; the pipeline runs in other threads.
    """

    def __init__(self, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self._ask = ask
        self._loop = loop

    def of_release(self, release: str, turn: threading.Lock) -> RemoteRanker:
        """Return the ranker of a release.

        Parameters
        ----------
        release : str
        turn : Lock
            Held by the thread that is in the pipeline; given up while it waits for scores, so
            that another batch can be retrieved meanwhile.
        """
        return RemoteRanker(release, turn, self._ask, self._loop)


class RemoteRanker:
    """A :class:`~ranking.fine.ranker.Ranker` that asks another process."""

    def __init__(
        self, release: str, turn: threading.Lock, ask: Ask, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._release = release
        self._turn = turn
        self._ask = ask
        self._loop = loop

    def score(self, inputs: RankerInputs) -> FloatArray:
        """See :meth:`ranking.fine.ranker.Ranker.score`."""
        self._turn.release()
        try:
            return asyncio.run_coroutine_threadsafe(self._call(inputs), self._loop).result(
                _PATIENCE_S
            )
        finally:
            self._turn.acquire()

    async def _call(self, inputs: RankerInputs) -> FloatArray:
        return await self._ask(self._release, inputs)


def join(parts: Sequence[RankerInputs]) -> RankerInputs:
    """Join inputs along their first axis; shorter second axes are padded with zeros.

    That is the padding of :func:`ranking.fine.inputs.ranker_inputs`: ``mask`` is 0 and
    ``lengths`` does not count it.
    """
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, NDArray[Any]] = {}
    for name, first in parts[0].items():
        arrays = [part[name] for part in parts]
        B = sum(len(array) for array in arrays)
        # Users and lengths have no second axis to pad; all others have candidates or events.
        inner = tuple(np.max([array.shape[1:] for array in arrays], axis=0))
        whole = np.zeros((B, *inner), first.dtype)
        start = 0
        for array in arrays:
            whole[(slice(start, start + len(array)), *map(slice, array.shape[1:]))] = array
            start += len(array)
        joined[name] = whole
    return joined


def part(scores: FloatArray, parts: Sequence[RankerInputs]) -> list[FloatArray]:
    """Take the scores (B, C) of joined inputs apart again, without their padding."""
    taken = []
    start = 0
    for inputs in parts:
        B, C = inputs["mask"].shape
        taken.append(np.ascontiguousarray(scores[start : start + B, :C]))
        start += B
    return taken
