"""The features of sampled answers, written to the database behind the answers' backs.

The queue is bounded, and so are the rows that are kept: the oldest leave.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from features.errors import ShortlistError
from features.served import Pool, ServedSample, prune_served, record_served
from features.spec import spec_hash
from ranking.types import ServedFeatures
from serve.logs import NAME
from serve.metrics import Metrics
from serve.respond import Answer

_LOGGER = logging.getLogger(NAME)

# Answers of one statement; a megabyte at most.
_BATCH = 50
_METRIC = "shortlist_served_features"
_SPEC = spec_hash()


class SampleWriter:
    """Collects the features of sampled answers and writes them in batches.

    Parameters
    ----------
    pool : AsyncConnectionPool
    metrics : Metrics
    capacity : int
        Most answers that wait; 0 records nothing.
    most_rows : int
        Most answers that the table keeps.
    """

    def __init__(self, pool: Pool, metrics: Metrics, *, capacity: int, most_rows: int) -> None:
        self._pool = pool
        self._metrics = metrics
        self._capacity = capacity
        self._most_rows = most_rows
        self._waiting: deque[ServedSample] = deque()
        self._unpruned = False

    def add(self, user_id: str, answer: Answer, served: ServedFeatures) -> None:
        """Queue the features of an answer; drops them when the queue is full."""
        done = answer.done
        assert done is not None
        if len(self._waiting) >= self._capacity:
            self._metrics.count(_METRIC, "dropped")
            return
        self._waiting.append(
            ServedSample(
                rec_id=answer.rec_id,
                served_at=done.as_of,
                user_id=user_id,
                release=done.ranking.release,
                spec_hash=_SPEC,
                user_as_of=done.as_of,
                user_snapshot=done.snapshot,
                item_as_of=served.item_as_of,
                item_snapshot=served.item_snapshot,
                user_features=served.user,
                item_keys=served.item_keys,
                item_features=served.items,
                cross_features=served.cross,
            )
        )

    def forget(self, user_id: str) -> None:
        """Drop what waits of a user."""
        self._waiting = deque(sample for sample in self._waiting if sample.user_id != user_id)

    async def flush(self) -> None:
        """Write what waits now, up to the first error.

        Answers of who was erased meanwhile are left out.
        """
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_BATCH, len(self._waiting)))]
            try:
                written = await record_served(self._pool, batch)
            except asyncio.CancelledError:
                # At the end of the service: storing an answer twice does no harm.
                self._waiting.extendleft(reversed(batch))
                raise
            except ShortlistError as error:
                self._metrics.count(_METRIC, "failed", by=len(batch))
                _LOGGER.warning("the features of %d answers were lost: %s", len(batch), error)
                return
            self._metrics.count(_METRIC, "written", by=written)
            if left_out := len(batch) - written:
                self._metrics.count(_METRIC, "dropped", by=left_out)
            self._unpruned = True

    async def prune(self) -> None:
        """Delete the oldest rows beyond the limit, if rows were added."""
        if self._unpruned:
            self._unpruned = False
            await prune_served(self._pool, self._most_rows)
