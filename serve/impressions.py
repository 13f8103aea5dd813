"""What was shown, written to the database behind the answers' backs.

The queue is bounded: when the database is away, impressions wait, and what finds no room is dropped
and counted; answers never wait for them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from features.answers import ShownAnswer
from features.errors import DatabaseUnavailable
from ranking.catalogue import LiveCatalogue
from ranking.types import RankedItem
from serve.logs import NAME
from serve.metrics import Metrics

_LOGGER = logging.getLogger(NAME)

# Items of one statement.
_BATCH = 4000


@dataclass(frozen=True, slots=True)
class Shown:
    """One answer that was sent.

    Attributes
    ----------
    rec_id, user_id, release, scenario
        Of the answer.
    items : sequence of RankedItem
        In the order they were shown.
    catalogue : LiveCatalogue
        Has the items' keys of the database.
    served_at : float
        Unix seconds.
    """

    rec_id: str
    user_id: str
    release: str
    scenario: str | None
    items: Sequence[RankedItem]
    catalogue: LiveCatalogue
    served_at: float

    def row(self) -> ShownAnswer:
        """Return what is stored of it."""
        items = self.items
        n = len(items)
        return ShownAnswer(
            self.rec_id,
            self.user_id,
            self.release,
            self.scenario,
            self.catalogue.keys(np.fromiter([item.row for item in items], np.int64, n)),
            np.fromiter([item.score for item in items], np.float32, n),
            [item.sources[0].name if item.sources else "" for item in items],
            self.served_at,
        )


class ImpressionWriter:
    """Collects what was shown and writes it in batches.

    Parameters
    ----------
    write : callable
        Stores answers and returns how many were new.
    metrics : Metrics
    capacity : int
        Most items that wait; 0 records nothing.
    """

    def __init__(
        self,
        write: Callable[[Sequence[ShownAnswer]], Awaitable[int]],
        metrics: Metrics,
        *,
        capacity: int,
    ) -> None:
        self._write = write
        self._metrics = metrics
        self._capacity = capacity
        self._waiting: deque[Shown] = deque()
        self._items = 0

    def add(self, shown: Shown) -> None:
        """Queue an answer; drops it when the queue is full."""
        if self._items + len(shown.items) > self._capacity:
            self._metrics.count("shortlist_impressions", "dropped", by=len(shown.items))
            return
        self._items += len(shown.items)
        self._waiting.append(shown)

    def forget(self, user_id: str) -> None:
        """Drop what waits of a user; what is being written stays with the database."""
        kept = [shown for shown in self._waiting if shown.user_id != user_id]
        waiting = sum(len(shown.items) for shown in self._waiting)
        self._items -= waiting - sum(len(shown.items) for shown in kept)
        self._waiting = deque(kept)

    async def flush(self, patience_s: float = 5.0) -> None:
        """Write what waits now, for at most `patience_s` seconds and up to the first error.

        What was not written waits for the next time: storing an answer twice does no harm.
        """
        end = time.monotonic() + patience_s
        while self._waiting and time.monotonic() < end:
            batch: list[Shown] = []
            items = 0
            while self._waiting and items < _BATCH:
                batch.append(self._waiting.popleft())
                items += len(batch[-1].items)
            try:
                await self._write([shown.row() for shown in batch])
            except DatabaseUnavailable as error:
                self._waiting.extendleft(reversed(batch))
                _LOGGER.warning("%d impressions wait: %s", self._items, error)
                return
            except asyncio.CancelledError:
                # At the end of the service: it may or may not be stored.
                self._waiting.extendleft(reversed(batch))
                raise
            except BaseException:
                self._fail(items)
                raise
            self._items -= items
            self._metrics.count("shortlist_impressions", "written", by=items)

    async def close(self) -> None:
        """Write what waits; what cannot be written now is lost."""
        await self.flush()
        if self._items:
            _LOGGER.warning("%d impressions were lost", self._items)
            self._fail(self._items)

    def _fail(self, items: int) -> None:
        self._items -= items
        self._metrics.count("shortlist_impressions", "failed", by=items)
