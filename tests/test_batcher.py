"""The batcher: natural batches, bounds, failures alone, cancellation, deadlines, close."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.batcher import Batcher, Closed, Expired, QueueFull


class Doubler:
    """Doubles numbers; keeps the batches it saw; waits for `gate` when there is one."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        self.batches: list[list[int]] = []
        self.gate = gate

    async def run(self, batch: list[int]) -> Sequence[int | Exception]:
        self.batches.append(list(batch))
        if self.gate is not None:
            await self.gate.wait()
        return [2 * number for number in batch]


def batcher(run, **changes) -> Batcher[int, int]:
    options = {"max_requests": 8, "max_rows": 100, "max_queued": 100} | changes
    return Batcher(run, **options)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_takes_all_that_queued_while_it_ran():
    async def scenario() -> None:
        gate = asyncio.Event()
        work = Doubler(gate)
        tested = batcher(work.run)
        first = tested.submit(1)
        await settled()
        assert tested.busy
        rest = [tested.submit(number) for number in range(2, 7)]
        gate.set()
        assert await asyncio.gather(first, *rest) == [2, 4, 6, 8, 10, 12]
        assert work.batches == [[1], [2, 3, 4, 5, 6]]
        assert not tested.busy

    asyncio.run(scenario())


def test_an_idle_batcher_does_not_wait():
    async def scenario() -> None:
        work = Doubler()
        tested = batcher(work.run)
        for number in range(5):
            assert await asyncio.wait_for(tested.submit(number), 1) == 2 * number
        assert work.batches == [[0], [1], [2], [3], [4]]

    asyncio.run(scenario())


def test_requests_and_rows_bound_a_batch():
    async def scenario() -> None:
        gate = asyncio.Event()
        work = Doubler(gate)
        tested = batcher(work.run, max_requests=3, max_rows=10)
        futures = [tested.submit(0)]
        await settled()
        futures += [
            tested.submit(number, rows=rows)
            for number, rows in [(1, 4), (2, 4), (3, 4), (4, 99), (5, 1), (6, 1), (7, 1), (8, 1)]
        ]
        gate.set()
        await asyncio.gather(*futures)
        assert work.batches == [[0], [1, 2], [3], [4], [5, 6, 7], [8]]

    asyncio.run(scenario())


def test_one_bad_request_fails_alone():
    async def run(batch: list[int]) -> Sequence[int | Exception]:
        if 3 in batch:
            raise ZeroDivisionError
        return [number + 100 for number in batch]

    async def scenario() -> None:
        tested = batcher(run)
        futures = [tested.submit(number) for number in range(8)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(r) for r in results].count(ZeroDivisionError) == 1
        assert isinstance(results[3], ZeroDivisionError)
        assert [r for r in results if isinstance(r, int)] == [100, 101, 102, 104, 105, 106, 107]

    asyncio.run(scenario())


def test_an_exception_in_place_of_a_result_is_raised_for_that_request():
    async def run(batch: list[int]) -> Sequence[int | Exception]:
        return [KeyError("no") if number == 1 else number for number in batch]

    async def scenario() -> None:
        tested = batcher(run)
        futures = [tested.submit(number) for number in range(3)]
        assert await futures[0] == 0
        with pytest.raises(KeyError):
            await futures[1]
        assert await futures[2] == 2

    asyncio.run(scenario())


def test_a_wrong_number_of_results_fails_the_requests():
    async def run(batch: list[int]) -> Sequence[int | Exception]:
        return []

    async def scenario() -> None:
        with pytest.raises(ValueError, match="0 results for a batch of 1"):
            await batcher(run).submit(1)

    asyncio.run(scenario())


def test_a_cancelled_request_costs_nothing():
    async def scenario() -> None:
        gate = asyncio.Event()
        work = Doubler(gate)
        tested = batcher(work.run)
        first = tested.submit(0)
        await settled()
        waiting = [tested.submit(number) for number in range(1, 5)]
        waiting[1].cancel()
        gate.set()
        await asyncio.gather(first, *waiting, return_exceptions=True)
        assert work.batches == [[0], [1, 3, 4]]
        assert tested.dropped["cancelled"] == 1

    asyncio.run(scenario())


def test_an_expired_request_is_answered_and_not_run():
    async def scenario() -> None:
        now = 0.0
        gate = asyncio.Event()
        work = Doubler(gate)
        tested = batcher(work.run, clock=lambda: now)
        first = tested.submit(0)
        await settled()
        late, good = tested.submit(1, deadline=0.5), tested.submit(2, deadline=5.0)
        now = 1.0
        gate.set()
        assert await first == 0
        with pytest.raises(Expired):
            await late
        assert await good == 4
        assert work.batches == [[0], [2]]
        assert tested.dropped["expired"] == 1

    asyncio.run(scenario())


def test_a_deadline_holds_while_the_batch_runs():
    async def scenario() -> None:
        gate = asyncio.Event()
        work = Doubler(gate)
        tested = batcher(work.run)
        late, good = tested.submit(1, deadline=time.monotonic() + 0.05), tested.submit(2)
        with pytest.raises(Expired):
            await asyncio.wait_for(late, 5)
        assert not good.done()
        gate.set()
        assert await good == 4
        assert work.batches == [[1, 2]]
        assert tested.dropped == {"expired": 1, "cancelled": 0, "queue_full": 0}

    asyncio.run(scenario())


def test_a_full_queue_refuses():
    async def scenario() -> None:
        gate = asyncio.Event()
        tested = batcher(Doubler(gate).run, max_queued=2)
        futures = [tested.submit(0)]
        await settled()
        futures += [tested.submit(1), tested.submit(2)]
        with pytest.raises(QueueFull, match="2 requests wait, at most 2 may"):
            tested.submit(3)
        assert tested.queued == 2
        gate.set()
        assert await asyncio.gather(*futures) == [0, 2, 4]

    asyncio.run(scenario())


def test_close_finishes_what_waits_and_refuses_the_rest():
    async def scenario() -> None:
        gate = asyncio.Event()
        tested = batcher(Doubler(gate).run, max_requests=1)
        futures = [tested.submit(number) for number in range(3)]
        await settled()
        closing = asyncio.create_task(tested.close())
        await settled()
        with pytest.raises(Closed):
            tested.submit(9)
        gate.set()
        await closing
        assert await asyncio.gather(*futures) == [0, 2, 4]

    asyncio.run(scenario())


def test_close_fails_what_does_not_end_in_time():
    async def scenario() -> None:
        tested = batcher(Doubler(asyncio.Event()).run, max_requests=1)
        futures = [tested.submit(number) for number in range(3)]
        await settled()
        await tested.close(grace_s=0.05)
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, Closed) for result in results)

    asyncio.run(scenario())


def test_several_batches_may_be_in_flight():
    async def scenario() -> None:
        gate = asyncio.Event()
        work = Doubler(gate)
        tested = batcher(work.run, in_flight=2)
        futures = [tested.submit(0)]
        await settled()
        futures.append(tested.submit(1))
        await settled()
        futures.append(tested.submit(2))
        await settled()
        assert work.batches == [[0], [1]]
        gate.set()
        assert await asyncio.gather(*futures) == [0, 2, 4]

    asyncio.run(scenario())


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 3), st.integers(1, 20))
def test_each_request_resolves_once_with_its_own_answer(seed, most, in_flight, queue):
    """Random arrivals, durations, failures, cancellations and deadlines."""
    random_ = random.Random(seed)
    running = 0
    largest = 0

    async def run(batch: list[int]) -> Sequence[int | Exception]:
        nonlocal running, largest
        running += 1
        largest = max(largest, len(batch))
        assert running <= in_flight
        assert len(set(batch)) == len(batch)
        try:
            for _ in range(random_.randrange(4)):
                await asyncio.sleep(0)
            if any(number % 7 == 0 for number in batch):
                raise ArithmeticError
            return [ValueError() if number % 5 == 0 else -number for number in batch]
        finally:
            running -= 1

    async def scenario() -> None:
        now = 0.0
        tested: Batcher[int, int] = Batcher(
            run,
            max_requests=most,
            max_rows=10**9,
            max_queued=queue,
            in_flight=in_flight,
            clock=lambda: now,
        )
        futures = {}
        for number in range(1, 60):
            now += 0.1
            try:
                deadline = now + random_.choice([0.05, 0.3, float("inf")])
                futures[number] = tested.submit(number, deadline=deadline)
            except QueueFull:
                continue
            if random_.random() < 0.1:
                random_.choice(list(futures.values())).cancel()
            for _ in range(random_.randrange(3)):
                await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.wait(futures.values()), 5)
        for number, future in futures.items():
            if future.cancelled() or isinstance(future.exception(), Expired):
                continue
            if number % 7 == 0:
                assert isinstance(future.exception(), ArithmeticError)
            elif number % 5 == 0:
                assert isinstance(future.exception(), ValueError)
            else:
                assert future.result() == -number
        assert not tested.busy
        assert tested.queued == 0
        assert largest <= most

    asyncio.run(scenario())
