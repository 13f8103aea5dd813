"""Events on their way into the database: one commit for all requests that came meanwhile.

A statement takes every request that queued up while the one before ran, so a commit costs each
of them a share. One statement runs at a time: events of a user are stored in the order in which
they came. When a statement fails because of one request, the others are stored without it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from features.errors import DatabaseUnavailable
from features.events import EventResult, EventRow
from serve.batcher import Batcher
from serve.metrics import Metrics

Rows = Sequence[EventRow]
Results = list[EventResult]

# Requests of one statement and requests that may wait: rows are what is limited.
_REQUESTS = 4096


class EventWriter:
    """Stores events in groups.

    Parameters
    ----------
    write : callable
        Stores rows with one statement, and returns a result for each after the commit.
    metrics : Metrics
    max_rows : int
        Most rows of one statement; a request with more has its own.
    max_queued_rows : int
        Most rows that wait.
    """

    def __init__(
        self,
        write: Callable[[Rows], Awaitable[Results]],
        metrics: Metrics,
        *,
        max_rows: int,
        max_queued_rows: int,
    ) -> None:
        self._write = write
        self._metrics = metrics
        self.batcher: Batcher[Rows, Results] = Batcher(
            self._run,
            max_requests=_REQUESTS,
            max_rows=max_rows,
            max_queued=_REQUESTS,
            max_queued_rows=max_queued_rows,
        )

    def submit(self, rows: Rows) -> asyncio.Future[Results]:
        """Queue the events of one request.

        Returns
        -------
        asyncio.Future
            A result for each row, after the commit. Cancelling it before its statement starts
            stores nothing; later it changes nothing.

        Raises
        ------
        QueueFull
            Too many rows wait.
        Closed
            The service is shutting down.
        """
        return self.batcher.submit(rows, rows=len(rows))

    async def close(self) -> None:
        """Take no more events, and store what waits."""
        await self.batcher.close()

    async def settled(self) -> None:
        """Wait until everything that waits now is stored or failed."""
        with contextlib.suppress(DatabaseUnavailable):
            await self.batcher.submit((), rows=0)

    async def _run(self, requests: list[Rows]) -> Sequence[Results | Exception]:
        rows = [row for request in requests for row in request]
        if not rows:
            return [[] for _ in requests]
        self._metrics.observe("shortlist_event_commit_rows", len(rows))
        try:
            results = await self._write(rows)
        except DatabaseUnavailable as error:
            # Not the fault of one request: halving the group would only ask again and again.
            return [error] * len(requests)
        ends = 0
        parts: list[Results | Exception] = []
        for request in requests:
            parts.append(results[ends : ends + len(request)])
            ends += len(request)
        return parts
