"""What was shown, written to the database behind the answers' backs.

The queue is bounded: when the database is away, impressions are dropped and counted; answers
never wait for them.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from features.errors import ShortlistError
from features.events import Impression
from ranking.catalogue import LiveCatalogue
from ranking.types import RankedItem
from serve.logs import NAME
from serve.metrics import Metrics

_LOGGER = logging.getLogger(NAME)

# Rows of one statement.
_BATCH = 2000


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

    def rows(self) -> list[Impression]:
        """Return one row for each item."""
        keys = self.catalogue.keys(np.array([item.row for item in self.items], np.int64))
        return [
            Impression(
                rec_id=self.rec_id,
                position=position,
                user_id=self.user_id,
                item_key=int(keys[position]),
                release=self.release,
                scenario=self.scenario,
                source=item.sources[0].name if item.sources else None,
                score=item.score if math.isfinite(item.score) else None,
                served_at=self.served_at,
            )
            for position, item in enumerate(self.items)
        ]


class ImpressionWriter:
    """Collects what was shown and writes it in batches.

    Parameters
    ----------
    write : callable
        Stores rows and returns how many were new.
    metrics : Metrics
    capacity : int
        Most rows that wait; 0 records nothing.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Impression]], Awaitable[int]],
        metrics: Metrics,
        *,
        capacity: int,
    ) -> None:
        self._write = write
        self._metrics = metrics
        self._capacity = capacity
        self._waiting: deque[Shown] = deque()
        self._rows = 0

    def add(self, shown: Shown) -> None:
        """Queue an answer; drops it when the queue is full."""
        if self._rows + len(shown.items) > self._capacity:
            self._metrics.count("shortlist_impressions", "dropped", by=len(shown.items))
            return
        self._rows += len(shown.items)
        self._waiting.append(shown)

    async def flush(self, patience_s: float = 5.0) -> None:
        """Write what waits now, for at most `patience_s` seconds and up to the first error."""
        end = time.monotonic() + patience_s
        while self._waiting and time.monotonic() < end:
            rows: list[Impression] = []
            while self._waiting and len(rows) < _BATCH:
                rows += self._waiting.popleft().rows()
            self._rows -= len(rows)
            try:
                await self._write(rows)
            except ShortlistError as error:
                self._metrics.count("shortlist_impressions", "failed", by=len(rows))
                _LOGGER.warning("%d impressions were lost: %s", len(rows), error)
                return
            self._metrics.count("shortlist_impressions", "written", by=len(rows))
