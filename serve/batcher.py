"""Natural batching: a batch is what queued up while the last one ran.

Nothing ever waits for a batch to fill. There is no idle worker to wake up: a submission to an
idle batcher starts the task that drains the queue, so no wake-up can be lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from features.errors import ShortlistError

T = TypeVar("T")
R = TypeVar("R")


class QueueFull(ShortlistError):
    """As many requests wait as may wait."""


class Expired(ShortlistError):
    """The deadline passed before there was an answer."""


class Closed(ShortlistError):
    """The batcher takes no more requests."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[T, R]):
    request: T
    rows: int
    deadline: float
    future: asyncio.Future[R] = field(repr=False)


class Batcher(Generic[T, R]):
    """Runs requests in batches, one batch at a time unless `in_flight` says otherwise.

    Parameters
    ----------
    run : callable
        Computes one batch: a result, or an exception, for each request in order. If it raises,
        the batch is halved until the request that is to blame stands alone.
    max_requests : int
        Most requests in a batch.
    max_rows : int
        Most rows in a batch; a single request with more runs alone.
    max_queued : int
        Most requests that wait.
    max_queued_rows : int or None
        Most rows that wait; one request with more waits alone. None: no limit.
    in_flight : int
        Batches that may run at the same time.
    clock : callable
        Monotonic seconds; deadlines are in its time.
    """

    def __init__(
        self,
        run: Callable[[list[T]], Awaitable[Sequence[R | Exception]]],
        *,
        max_requests: int,
        max_rows: int,
        max_queued: int,
        max_queued_rows: int | None = None,
        in_flight: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._max_requests = max_requests
        self._max_rows = max_rows
        self._max_queued = max_queued
        self._max_queued_rows = max_queued_rows
        self._in_flight = in_flight
        self._clock = clock
        self._queue: deque[_Waiting[T, R]] = deque()
        self._rows = 0
        self._drains: set[asyncio.Task[None]] = set()
        self._closed = False
        self.dropped = {"expired": 0, "cancelled": 0, "queue_full": 0}

    @property
    def queued(self) -> int:
        """Requests that wait for their turn."""
        return len(self._queue)

    @property
    def queued_rows(self) -> int:
        """Rows of these."""
        return self._rows

    @property
    def busy(self) -> bool:
        """Whether a request submitted now would have to wait for a running batch."""
        return len(self._drains) >= self._in_flight

    def submit(
        self, request: T, *, rows: int = 1, deadline: float = float("inf")
    ) -> asyncio.Future[R]:
        """Queue a request.

        Parameters
        ----------
        request : T
            Handed to `run`.
        rows : int
            What it weighs in a batch, in rows.
        deadline : float
            Seconds in the time of `clock`. At this moment the request fails, whatever its
            batch waits for.

        Returns
        -------
        asyncio.Future
            Cancelling it before its batch starts drops the request at no cost.

        Raises
        ------
        QueueFull
            As many requests, or rows, wait already as may.
        Closed
            :meth:`close` was called.
        """
        if self._closed:
            raise Closed("the service is shutting down")
        if len(self._queue) >= self._max_queued:
            self.dropped["queue_full"] += 1
            raise QueueFull(f"{len(self._queue)} requests wait, at most {self._max_queued} may")
        most_rows = self._max_queued_rows
        if most_rows is not None and self._queue and self._rows + rows > most_rows:
            self.dropped["queue_full"] += 1
            raise QueueFull(f"{self._rows} rows wait, at most {most_rows} may")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._queue.append(_Waiting(request, rows, deadline, future))
        self._rows += rows
        if deadline != float("inf"):
            timer = loop.call_later(deadline - self._clock(), self._expire, future)
            future.add_done_callback(lambda _: timer.cancel())
        if not self.busy:
            task = loop.create_task(self._drain())
            self._drains.add(task)
            task.add_done_callback(self._drains.discard)
        return future

    async def close(self, grace_s: float = 5.0) -> None:
        """Take no more requests, finish what waits, and fail what is left after `grace_s`."""
        self._closed = True
        drains = set(self._drains)
        if drains:
            _, late = await asyncio.wait(drains, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        while self._queue:
            waiting = self._queue.popleft()
            self._rows -= waiting.rows
            if not waiting.future.done():
                waiting.future.set_exception(Closed("the service is shutting down"))

    async def _drain(self) -> None:
        # No await stands between the last look at the queue and the end of this task, and
        # `submit` runs on the same loop: but a submission may come between the end and the
        # done callback, so the task leaves the set itself.
        task = asyncio.current_task()
        assert task is not None
        while batch := self._take():
            await self._settle(batch)
        self._drains.discard(task)

    def _expire(self, future: asyncio.Future[R]) -> None:
        if not future.done():
            self.dropped["expired"] += 1
            future.set_exception(Expired("its deadline passed before there was an answer"))

    def _take(self) -> list[_Waiting[T, R]]:
        """Return the next batch without the cancelled and the expired."""
        batch: list[_Waiting[T, R]] = []
        rows = 0
        now = self._clock()
        while self._queue and len(batch) < self._max_requests:
            waiting = self._queue[0]
            if waiting.deadline <= now:
                self._expire(waiting.future)
            if waiting.future.cancelled():
                self.dropped["cancelled"] += 1
            elif waiting.future.done():
                pass
            elif batch and rows + waiting.rows > self._max_rows:
                break
            else:
                batch.append(waiting)
                rows += waiting.rows
            self._queue.popleft()
            self._rows -= waiting.rows
        return batch

    async def _settle(self, batch: list[_Waiting[T, R]]) -> None:
        """Run a batch and resolve each of its futures exactly once."""
        try:
            results = await self._run([waiting.request for waiting in batch])
            if len(results) != len(batch):
                raise ValueError(f"{len(results)} results for a batch of {len(batch)}")
        except asyncio.CancelledError:
            for waiting in batch:
                if not waiting.future.done():
                    waiting.future.set_exception(Closed("the service is shutting down"))
            raise
        except Exception as error:
            if len(batch) == 1:
                if not batch[0].future.done():
                    batch[0].future.set_exception(error)
                return
            half = len(batch) // 2
            for part in (batch[:half], batch[half:]):
                kept = [waiting for waiting in part if not waiting.future.done()]
                if kept:
                    await self._settle(kept)
            return
        for waiting, result in zip(batch, results, strict=True):
            if waiting.future.done():
                continue
            if isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result(result)
