"""The service without HTTP: requests in, encoded answers out.

The way of a request: queue -> user states of the whole batch in one round trip -> pipeline in
one compute thread, while the event loop reads further requests -> answer. A batch is answered
by one release.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from features.answers import ShownAnswer, record_answers
from features.database import open_pool, resolve_url
from features.erasure import erase_user_async
from features.errors import DatabaseError, DatabaseUnavailable
from features.events import EventResult, EventRow, record_events_async
from features.states import UserState
from features.store import FeatureStore
from ranking.types import Query, Ranking
from serve.accounting import account
from serve.answers import AnswerStore
from serve.background import repeat
from serve.batcher import Batcher
from serve.config import Settings
from serve.events import EventWriter
from serve.impressions import ImpressionWriter
from serve.loading import load_serving
from serve.logs import NAME
from serve.metrics import Metrics
from serve.problems import ProblemError, queue_problems
from serve.respond import Answer, Job, Ranked, query_of, respond
from serve.samples import SampleWriter
from serve.schemas import RecommendationRequest
from serve.serving import Load, ReleaseHolder, Serving

T = TypeVar("T")

_LOGGER = logging.getLogger(NAME)

_clock = time.perf_counter

# Seconds between two publications of metrics, and between two clean-ups of kept answers.
_PUBLISH_S = 1.0
_SWEEP_S = 30.0
# How long an erasure may take, in seconds: it waits for a refresh or a load under way.
_ERASE_S = 60.0
# How long it may wait for the one before it, in seconds.
_ERASE_WAIT_S = 5.0
# How long /readyz waits for the database, in seconds.
_PING_S = 1.0


class Engine:
    """All components of one replica. Use it in one event loop: ``async with Engine(...)``.

    Parameters
    ----------
    settings : Settings
    directory : Path
        Shared by the replicas of this machine: metrics and answers for repeated request ids.
    load : callable or None
        Loads a release; None loads it with all stages in this process.
    in_flight : int
        Batches that run at the same time.
    """

    def __init__(
        self,
        settings: Settings,
        directory: Path,
        load: Load | None = None,
        in_flight: int = 1,
    ) -> None:
        self.settings = settings
        config = settings.serve
        self.metrics = Metrics(directory / "metrics")
        self.holder = ReleaseHolder(
            settings, self.metrics, load or (lambda path: load_serving(path, settings))
        )
        self.answers = AnswerStore(
            directory / "answers", config.request_id_ttl_s, config.request_id_entries
        )
        self.url = resolve_url(settings.database, settings.home)
        self.pool = open_pool(self.url, settings.database)
        self.store = FeatureStore(self.pool)
        # One erasure at a time, on a connection of its own: it may wait for a refresh, and
        # answers must not wait with it.
        alone = {"pool_min_size": 0, "pool_max_size": 1, "pool_timeout_s": _ERASE_WAIT_S}
        self._erasures = open_pool(self.url, settings.database.model_copy(update=alone))
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="pipeline")
        self.batcher: Batcher[Job, Ranked] = Batcher(
            self._run,
            max_requests=config.max_batch_requests,
            max_rows=config.max_batch_rows,
            max_queued=config.max_queued_requests,
            in_flight=in_flight,
            clock=_clock,
        )
        self.impressions = ImpressionWriter(
            self._write_impressions,
            self.metrics,
            capacity=config.impression_queue,
        )
        self.events = EventWriter(
            self._write_events,
            self.metrics,
            max_rows=config.event_commit_rows,
            max_queued_rows=config.event_queue_rows,
        )
        self.samples = SampleWriter(
            self.pool,
            self.metrics,
            capacity=settings.features.served_queue,
            most_rows=settings.features.served_rows,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Engine:
        """Connect, load the current release if there is one, and start the background work."""
        await self.pool.open()
        await self._erasures.open()
        await self.holder.open(self.pool, self._threads)
        config = self.settings.serve
        background: list[tuple[Callable[[], Awaitable[object]], float]] = [
            (self.impressions.flush, config.impression_flush_s),
            (self.samples.flush, config.impression_flush_s),
            (self.samples.prune, _SWEEP_S),
            (self.holder.follow_releases, config.release_poll_s),
            (self.holder.follow_catalogue, config.catalogue_poll_s),
            (self._publish, _PUBLISH_S),
            (self._sweep, _SWEEP_S),
        ]
        self._tasks = [asyncio.create_task(repeat(work, every)) for work, every in background]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Finish what is under way, write what waits, and disconnect."""
        await asyncio.gather(self.batcher.close(), self.events.close())
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.impressions.close()
        await self.samples.flush()
        with contextlib.suppress(OSError):
            self.metrics.flush()
        self._threads.shutdown(wait=True)
        for pool in (self.pool, self._erasures):
            with contextlib.suppress(Exception):
                await pool.close(timeout=2)

    def submit(self, request: RecommendationRequest, arrived: float) -> asyncio.Future[Ranked]:
        """Queue a request.

        Parameters
        ----------
        request : RecommendationRequest
        arrived : float
            When it arrived, in seconds of `time.perf_counter`.

        Raises
        ------
        ProblemError
            429 when too many wait, 503 when the service is not ready or stopping.
        """
        serving = self.require_release()
        wait_ms = request.deadline_ms or self.settings.serve.deadline_ms
        with queue_problems():
            return self.batcher.submit(
                Job(request, arrived, _clock()),
                rows=max(serving.candidates, request.count),
                deadline=arrived + wait_ms / 1e3,
            )

    def kept(self, request: RecommendationRequest) -> Answer | None:
        """Return the first answer of the request's id, None if there is none."""
        if request.request_id is None:
            return None
        body = self.answers.get(request.user_id, request.request_id)
        return None if body is None else Answer(body)

    async def recommend(self, request: RecommendationRequest) -> Answer:
        """Answer one request without HTTP.

        Raises
        ------
        ProblemError
            429 or 503.
        """
        arrived = _clock()
        kept = self.kept(request)
        if kept is not None:
            return kept
        answer = self.respond(request, await self.ranked(self.submit(request, arrived)), arrived)
        self.account(request, answer)
        return answer

    async def store_events(self, rows: Sequence[EventRow]) -> list[EventResult]:
        """Store events together with those of other requests; returns after the commit.

        Raises
        ------
        ProblemError
            429 when too many wait, 503 when the service is stopping.
        DatabaseUnavailable
            There was no commit in time. The events may be stored or not.
        """
        with queue_problems():
            return await self.in_time(self.events.submit(rows))

    async def erase(self, user_id: str) -> dict[str, int]:
        """Delete every trace of a user.

        What this replica holds of the user leaves first or is stored before; what other
        replicas hold is refused by the database.

        Returns
        -------
        dict of str to int
            Rows deleted, by table.

        Raises
        ------
        ProblemError
            429 when too many events wait, 503 when the service is stopping.
        DatabaseUnavailable
            The user is not erased yet: ask again.
        """
        with queue_problems():
            await self.in_time(self.events.settled(), _ERASE_S)
        report = await self.in_time(erase_user_async(self._erasures, user_id), _ERASE_S)
        self.impressions.forget(user_id)
        self.samples.forget(user_id)
        await asyncio.to_thread(self.answers.forget, user_id)
        return report.counts

    def require_release(self) -> Serving:
        """Return the release in service.

        Raises
        ------
        ProblemError
            503 if there is none.
        """
        if self.holder.serving is None:
            raise ProblemError(
                503, "not_ready", "no release is loaded yet; see /readyz", retry_after_s=1
            )
        return self.holder.serving

    async def similar(self, serving: Serving, item_id: str, count: int) -> Ranking:
        """Return items like an item.

        Raises
        ------
        InputError
            The catalogue has no such item.
        """

        def similar() -> Ranking:
            with serving.turn:
                return serving.pipeline.similar(item_id, count, time.time())

        return await asyncio.get_running_loop().run_in_executor(self._threads, similar)

    async def ping(self) -> None:
        """Read the state of a user that nobody has: database, schema and pool in one.

        Raises
        ------
        ShortlistError
            Whatever keeps it from answering.
        """
        await self.in_time(self.store.user_states(["/readyz"]), _PING_S)

    async def in_time(self, work: Awaitable[T], seconds: float | None = None) -> T:
        """Wait for the database, at most as long as a request may take by default.

        A frozen server heeds no timeout of its own, and giving up the driver's call would wait
        for that server too: so the call is left behind.

        Raises
        ------
        DatabaseUnavailable
            There was no answer within `seconds`.
        """
        seconds = seconds or self.settings.serve.deadline_ms / 1e3
        task = asyncio.ensure_future(work)
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            task.cancel()
            task.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise DatabaseUnavailable(f"no answer of the database within {seconds:g} s")
        return task.result()

    async def ranked(self, future: asyncio.Future[Ranked]) -> Ranked:
        """Wait for a queued request.

        Raises
        ------
        ProblemError
            503 for a passed deadline, a database that is away or a service that stops.
        """
        try:
            with queue_problems():
                return await future
        except DatabaseError as error:
            raise ProblemError(503, "database_unavailable", str(error), retry_after_s=1) from None

    def respond(self, request: RecommendationRequest, done: Ranked, arrived: float) -> Answer:
        """Encode an answer; the first answer of a request id is kept, and wins."""
        answer = respond(request, done, arrived)
        if request.request_id is not None:
            answer.body = self.answers.put(
                request.user_id, request.request_id, answer.body, done.as_of
            )
        return answer

    def account(self, request: RecommendationRequest, answer: Answer) -> None:
        """Count an answer and queue what it showed; called after it was sent."""
        account(request, answer, self.metrics, self.impressions, self.samples)

    async def _run(self, jobs: list[Job]) -> Sequence[Ranked | Exception]:
        serving = self.holder.serving
        assert serving is not None
        taken = _clock()
        try:
            states = await self.in_time(
                self.store.user_states([job.request.user_id for job in jobs])
            )
        except DatabaseUnavailable as error:
            # Not the fault of one request: halving the batch would only ask again and again.
            return [error] * len(jobs)
        read = _clock()
        self.metrics.observe("shortlist_batch_requests", len(jobs))
        rate = self.settings.features.served_sample_rate
        queries = [
            query_of(job.request, state, rate) for job, state in zip(jobs, states, strict=True)
        ]
        started, rankings, finished = await asyncio.get_running_loop().run_in_executor(
            self._threads, _timed, serving, queries, states
        )
        return [
            Ranked(
                serving=serving,
                ranking=ranking,
                as_of=state.as_of,
                parse_s=job.queued - job.arrived,
                # Waiting for the compute thread is waiting too.
                queue_s=taken - job.queued + started - read,
                user_state_s=read - taken,
                finished=finished,
                snapshot=state.snapshot,
            )
            for job, state, ranking in zip(jobs, states, rankings, strict=True)
        ]

    async def _write_impressions(self, answers: Sequence[ShownAnswer]) -> int:
        return await record_answers(self.pool, answers)

    async def _write_events(self, rows: Sequence[EventRow]) -> list[EventResult]:
        return await record_events_async(self.pool, rows)

    async def _publish(self) -> None:
        """Publish this replica's figures."""
        for batcher in (self.batcher, self.events.batcher):
            for reason, number in batcher.dropped.items():
                self.metrics.count("shortlist_requests_dropped", reason, by=number)
                batcher.dropped[reason] = 0
        self.metrics.gauge("shortlist_queued_requests", self.batcher.queued)
        self.metrics.gauge("shortlist_queued_events", self.events.batcher.queued_rows)
        if self.holder.serving is not None:
            ages = self.holder.serving.feature_ages()
            self.metrics.gauges(
                "shortlist_features_age_seconds",
                {(age.group,): age.age_s for age in ages if age.age_s is not None},
            )
        self.metrics.flush()

    async def _sweep(self) -> None:
        """Forget old answers."""
        await asyncio.get_running_loop().run_in_executor(None, self.answers.sweep)


def _timed(
    serving: Serving, queries: list[Query], states: list[UserState]
) -> tuple[float, list[Ranking], float]:
    with serving.turn:
        started = _clock()
        rankings = serving.pipeline.recommend(queries, states)
    # The stages follow each other without a gap; what comes after them is the way back.
    return started, rankings, started + sum(rankings[0].timing_ms.values()) / 1e3
