"""Events of many requests in one commit: each request gets its own results, nobody another's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from features.database import DatabaseConfig, open_pool
from features.errors import DatabaseUnavailable
from features.events import EventRow, record_events_async
from serve.batcher import Closed, QueueFull
from serve.events import EventWriter
from serve.metrics import Metrics


@pytest.fixture
def items(connection):
    connection.execute("insert into items (item_id) values ('a'), ('b'), ('poison')")
    connection.commit()
    return connection


def with_writer(
    url: str,
    work: Callable[[EventWriter], Awaitable[object]],
    max_rows: int = 1000,
    max_queued_rows: int = 1000,
    **database: object,
):
    """Run `work` with a writer on a pool of its own."""

    async def go() -> object:
        async with open_pool(url, DatabaseConfig.model_validate(database)) as pool:

            async def write(rows):
                return await record_events_async(pool, rows)

            writer = EventWriter(
                write, Metrics(), max_rows=max_rows, max_queued_rows=max_queued_rows
            )
            return await work(writer)

    return asyncio.run(go())


def event(number: int, user: str = "u", item: str = "a", value: float | None = None) -> EventRow:
    return EventRow(user, item, value=value, event_id=f"e{number}")


def statuses(results) -> list[str]:
    return [result.status for result in results]


def commits(connection) -> list[int]:
    """Return how many events each transaction stored, in their order."""
    rows = connection.execute(
        "select count(*) from interactions group by transaction_id order by min(interaction_id)"
    ).fetchall()
    return [count for (count,) in rows]


def test_what_queues_up_is_stored_with_one_commit_in_the_order_of_its_arrival(items, database_url):
    requests = [
        [event(10 * n + k, f"u{n % 7}", "ab"[k % 2], float(n)) for k in range(1 + n % 4)]
        for n in range(50)
    ]

    async def work(writer):
        return await asyncio.gather(*[writer.submit(rows) for rows in requests])

    for rows, results in zip(requests, with_writer(database_url, work), strict=True):
        assert [result.event_id for result in results] == [row.event_id for row in rows]
        assert set(statuses(results)) == {"accepted"}
    assert commits(items) == [sum(map(len, requests))]
    for user in range(7):
        stored = items.execute(
            "select event_id from interactions join users using (user_key)"
            " where user_id = %s order by interaction_id",
            (f"u{user}",),
        ).fetchall()
        assert [name for (name,) in stored] == [
            row.event_id for rows in requests for row in rows if row.user_id == f"u{user}"
        ]


def test_the_first_is_not_kept_waiting_for_more(items, database_url):
    async def work(writer):
        first = writer.submit([event(1)])
        await asyncio.sleep(0)  # its statement starts
        rest = [writer.submit([event(n)]) for n in range(2, 8)]
        return await asyncio.gather(first, *rest)

    assert all(statuses(results) == ["accepted"] for results in with_writer(database_url, work))
    assert commits(items) == [1, 6]


def test_a_statement_has_so_many_rows_unless_one_request_has_more(items, database_url):
    sizes = [2, 2, 3, 9, 1, 1, 3]

    async def work(writer):
        rows = iter(range(100))
        futures = [writer.submit([event(next(rows)) for _ in range(size)]) for size in sizes]
        return [len(results) for results in await asyncio.gather(*futures)]

    assert with_writer(database_url, work, max_rows=5) == sizes
    assert commits(items) == [4, 3, 9, 5]


def test_of_two_requests_with_the_same_event_one_is_told_duplicate(items, database_url):
    async def work(writer):
        return await asyncio.gather(
            writer.submit([event(1, "nobody", "no such item"), event(2)]),
            writer.submit([event(2, item="b"), event(1), event(3)]),
            writer.submit([event(3), event(1)]),
        )

    first, second, third = with_writer(database_url, work)
    assert statuses(first) == ["rejected", "accepted"]
    assert statuses(second) == ["duplicate", "accepted", "accepted"]
    assert statuses(third) == ["duplicate", "duplicate"]
    assert commits(items) == [3]
    assert first[0].reason == "unknown_item: no item has the id 'no such item'"


def test_a_request_that_breaks_the_statement_fails_alone(items, database_url):
    items.execute(
        "create function refuse() returns trigger language plpgsql as"
        " $$ begin raise exception 'poison'; end $$"
    )
    items.execute(
        "create trigger refuse before insert on interactions for each row"
        " when (new.value = 99) execute function refuse()"
    )
    items.commit()

    async def work(writer):
        futures = [
            writer.submit([event(n, value=99 if n in (3, 11) else n), event(100 + n, "v")])
            for n in range(16)
        ]
        return await asyncio.gather(*futures, return_exceptions=True)

    results = with_writer(database_url, work)
    for n, result in enumerate(results):
        if n in (3, 11):
            assert isinstance(result, psycopg.errors.RaiseException)
        else:
            assert statuses(result) == ["accepted", "accepted"]
    stored = items.execute("select count(*), count(distinct event_id) from interactions")
    assert stored.fetchone() == (28, 28)
    (order,) = items.execute(
        "select array_agg(substr(event_id, 2)::int order by interaction_id)"
        " from interactions join users using (user_key) where user_id = 'v'"
    ).fetchone()
    assert order == sorted(order)


def test_a_caller_that_leaves_harms_nobody(items, database_url):
    async def work(writer):
        first = writer.submit([event(1)])
        waiting = [writer.submit([event(n)]) for n in range(2, 6)]
        waiting[1].cancel()
        await asyncio.sleep(0)
        first.cancel()  # while its statement runs
        later = writer.submit([event(9)])
        return await asyncio.gather(first, *waiting, later, return_exceptions=True)

    results = with_writer(database_url, work)
    gone = [isinstance(result, asyncio.CancelledError) for result in results]
    assert gone == [True, False, True, False, False, False]
    for result, left in zip(results, gone, strict=True):
        assert left or statuses(result) == ["accepted"]
    stored = items.execute("select event_id from interactions order by event_id").fetchall()
    assert [name for (name,) in stored] == ["e1", "e2", "e4", "e5", "e9"]


def test_no_more_rows_wait_than_may(items, database_url):
    async def work(writer):
        first = writer.submit([event(1)])
        await asyncio.sleep(0)
        waiting = [writer.submit([event(2), event(3)]), writer.submit([event(4)])]
        with pytest.raises(QueueFull, match="3 rows wait, at most 4 may"):
            writer.submit([event(5), event(6)])
        waiting.append(writer.submit([event(7)]))
        await asyncio.gather(first, *waiting)
        # An empty queue takes any request.
        return await writer.submit([event(10 + n) for n in range(20)])

    assert statuses(with_writer(database_url, work, max_queued_rows=4)) == ["accepted"] * 20


def test_a_database_that_is_away_is_said_to_all_and_nothing_is_halved(tmp_path):
    async def work(writer):
        futures = [writer.submit([event(n)]) for n in range(8)]
        return await asyncio.gather(*futures, return_exceptions=True)

    url = f"postgresql:///x?host={tmp_path}"
    results = with_writer(url, work, pool_timeout_s=0.3)
    assert all(isinstance(result, DatabaseUnavailable) for result in results)
    assert len({id(result) for result in results}) == 1


def test_settled_and_closed(items, database_url):
    async def work(writer):
        futures = [writer.submit([event(n)]) for n in range(3)]
        await writer.settled()
        assert all(future.done() for future in futures)
        last = writer.submit([event(4)])
        await writer.close()
        assert statuses(last.result()) == ["accepted"]
        with pytest.raises(Closed):
            writer.submit([event(5)])

    with_writer(database_url, work)
    assert sum(commits(items)) == 4
