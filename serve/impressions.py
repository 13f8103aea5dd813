"""What was shown, written to the database behind the answers' backs.

The queue is bounded: when the database is away, impressions are dropped and counted; answers
never wait for them.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from features.answers import ShownAnswer
from features.errors import ShortlistError
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
        """Drop what waits of a user."""
        kept = [shown for shown in self._waiting if shown.user_id != user_id]
        self._waiting = deque(kept)
        self._items = sum(len(shown.items) for shown in kept)

    async def flush(self, patience_s: float = 5.0) -> None:
        """Write what waits now, for at most `patience_s` seconds and up to the first error."""
        end = time.monotonic() + patience_s
        while self._waiting and time.monotonic() < end:
            answers: list[ShownAnswer] = []
            items = 0
            while self._waiting and items < _BATCH:
                shown = self._waiting.popleft()
                items += len(shown.items)
                answers.append(shown.row())
            self._items -= items
            try:
                await self._write(answers)
            except ShortlistError as error:
                self._metrics.count("shortlist_impressions", "failed", by=items)
                _LOGGER.warning("%d impressions were lost: %s", items, error)
                return
            self._metrics.count("shortlist_impressions", "written", by=items)
