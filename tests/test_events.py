"""Writing events and impressions: idempotent, each row answered, nothing lost."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import uuid_utils
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features.answers import ShownAnswer, record_answers
from features.database import DatabaseConfig, connect, open_pool
from features.errors import DatabaseUnavailable, SchemaError
from features.events import MOST_EVENT_TYPES, EventRow, record_events, record_events_async
from features.store import FeatureStore


@pytest.fixture
def items(connection):
    connection.execute("insert into items (item_id) values ('a'), ('b'), ('🎬 ''\"')")
    connection.commit()
    return connection


def stored(connection):
    return connection.execute(
        "select event_id, user_id, item_id, event_type, value from interactions"
        " inner join users using (user_key) inner join items using (item_key)"
        " inner join event_types using (event_type_key)"
        " order by interaction_id"
    ).fetchall()


def statuses(results):
    return [result.status for result in results]


def in_pool(url, work, **config):
    async def go():
        async with open_pool(url, DatabaseConfig(**config)) as pool:
            return await work(pool)

    return asyncio.run(go())


def test_whole_numbers_beside_others(items):
    rows = [
        EventRow("u", "a", "rating", 4, 1_000_000_000, "e1"),
        EventRow("u", "a", "rating", 4.5, 1_000_000_000.5, "e2"),
    ]
    assert statuses(record_events(items, rows)) == ["accepted"] * 2
    assert [row[4] for row in stored(items)] == [4.0, 4.5]


def test_a_batch_and_the_same_again(items):
    rows = [
        EventRow("u1", "a", "rating", 4.5, 1000.0, "e1"),
        EventRow("u2", "🎬 '\"", "view", None, None, "e2"),
        EventRow("u1", "b", event_id="e1"),
        EventRow("u1", "b"),
    ]
    first = record_events(items, rows)
    assert statuses(first) == ["accepted", "accepted", "duplicate", "accepted"]
    assert [result.event_id for result in first[:3]] == ["e1", "e2", "e1"]
    assert uuid_utils.UUID(first[3].event_id).version == 7
    assert statuses(record_events(items, rows[:3])) == ["duplicate"] * 3
    assert [row[1:] for row in stored(items)] == [
        ("u1", "a", "rating", 4.5),
        ("u2", "🎬 '\"", "view", None),
        ("u1", "b", "interaction", None),
    ]


NOW = time.time()
BAD = {
    "unknown_item: no item has the id 'zzz'": EventRow("u", "zzz"),
    "invalid_user_id: user_id is empty": EventRow("", "a"),
    "invalid_user_id: user_id contains the character NUL": EventRow("a\0b", "a"),
    "invalid_user_id: user_id contains bytes that are not UTF-8": EventRow("\ud800", "a"),
    "invalid_item_id: item_id has 10000 characters, at most 256 are allowed": EventRow(
        "u", "x" * 10_000
    ),
    "invalid_event_type: event_type is empty": EventRow("u", "a", ""),
    "invalid_event_id: event_id is empty": EventRow("u", "a", event_id=""),
    "invalid_value: value is nan, expected a finite 32-bit number": EventRow(
        "u", "a", value=float("nan")
    ),
    "invalid_value: value is -inf, expected a finite 32-bit number": EventRow(
        "u", "a", value=float("-inf")
    ),
    "invalid_value: value is 1e+39, expected a finite 32-bit number": EventRow(
        "u", "a", value=1e39
    ),
    "invalid_occurred_at: occurred_at is nan, expected unix seconds": EventRow(
        "u", "a", occurred_at=float("nan")
    ),
    "invalid_value: value is a huge integer, expected a finite 32-bit number": EventRow(
        "u", "a", value=10**5000
    ),
    "invalid_occurred_at: occurred_at is a huge integer, expected unix seconds": EventRow(
        "u", "a", occurred_at=10**400
    ),
    "invalid_occurred_at: occurred_at is -1.0, before 1970": EventRow("u", "a", occurred_at=-1.0),
}


def test_bad_rows_are_named_and_good_ones_of_the_batch_kept(items):
    rows = [EventRow("good", "a", event_id="g1"), *BAD.values(), EventRow("good", "b")]
    results = record_events(items, rows)
    assert statuses(results) == ["accepted", *["rejected"] * len(BAD), "accepted"]
    assert [result.reason for result in results[1:-1]] == list(BAD)
    assert [row[1] for row in stored(items)] == ["good", "good"]
    assert items.execute("select user_id from users").fetchall() == [("good",)]


def test_the_future(items):
    rows = [
        EventRow("u", "a", occurred_at=time.time() + 200),
        EventRow("u", "a", occurred_at=time.time() + 400),
        EventRow("u", "a", occurred_at=1e18),
    ]
    results = record_events(items, rows)
    assert statuses(results) == ["accepted", "rejected", "rejected"]
    assert results[1].reason.startswith("future_occurred_at: ")
    (latest,) = items.execute("select max(occurred_at) <= now() from interactions").fetchone()
    assert latest


def test_an_empty_batch(items):
    assert record_events(items, []) == []


def test_the_order_of_a_batch_is_the_order_of_equal_times(items):
    record_events(items, [EventRow("u", item, occurred_at=5.0) for item in "babab"])
    order = "select item_key from interactions order by occurred_at, interaction_id"
    assert [key for (key,) in items.execute(order)] == [2, 1, 2, 1, 2]


def test_the_next_read_sees_the_event(items, database_url):
    async def work(pool):
        store = FeatureStore(pool)
        seen = []
        for count in range(1, 20):
            await record_events_async(pool, [EventRow("u", "a" if count % 2 else "b")])
            (state,) = await store.user_states(["u"])
            seen.append((len(state.item_keys), state.features[0]))
        return seen

    assert in_pool(database_url, work) == [(count, count) for count in range(1, 20)]


def test_the_same_batch_from_many_at_once_is_stored_once(items, database_url):
    """New users, the same event ids in opposite orders: the worst for locks."""
    rows = [EventRow(f"u{n}", "a", event_id=f"e{n}") for n in range(60)]

    def one(number):
        async def work(pool):
            return await record_events_async(pool, rows if number % 2 else rows[::-1])

        return in_pool(database_url, work)

    with ThreadPoolExecutor(6) as threads:
        results = list(threads.map(one, range(6)))
    assert sum(statuses(batch).count("accepted") for batch in results) == 60
    assert all(set(statuses(batch)) <= {"accepted", "duplicate"} for batch in results)
    assert items.execute("select count(*), count(distinct user_key) from interactions").fetchone()[
        :
    ] == (60, 60)


def test_connections_that_were_cut_lose_and_double_nothing(items, database_url):
    async def work(pool):
        await pool.wait()
        with connect(database_url) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
                " and application_name <> 'keep'"
            )
        return await record_events_async(pool, [EventRow("u", "a")])

    items.execute("set application_name = 'keep'")
    items.commit()
    assert statuses(in_pool(database_url, work, pool_min_size=3)) == ["accepted"]
    assert len(stored(items)) == 1


def test_no_server(tmp_path):
    async def work(pool):
        await record_events_async(pool, [EventRow("u", "a")])

    with pytest.raises(DatabaseUnavailable):
        in_pool(f"postgresql:///x?host={tmp_path}", work, pool_timeout_s=0.3)


def test_no_schema(bare_url):
    async def work(pool):
        await record_events_async(pool, [EventRow("u", "a")])

    with pytest.raises(SchemaError, match="shortlist db apply"):
        in_pool(bare_url, work)


def answer(items=10, **changed):
    given = ShownAnswer(
        rec_id=str(uuid_utils.uuid7()),
        user_id="anyone",
        release="r1",
        scenario="home",
        item_keys=1 + np.arange(items) % 2,
        scores=np.linspace(1, 0, items, dtype=np.float32),
        sources=["ann", ""] * (items // 2),
        served_at=1000.0,
    )
    return replace(given, **changed)


def test_answers_are_stored_once_and_read_item_by_item(items, database_url):
    first = answer()
    second = answer(
        items=2,
        scenario=None,
        user_id="🎬",
        item_keys=np.array([7, 9]),
        scores=np.array([np.nan, np.inf]),
    )

    async def work(pool):
        return [
            await record_answers(pool, [first, second]),
            await record_answers(pool, [second, first, answer(items=0)]),
            await record_answers(pool, []),
        ]

    assert in_pool(database_url, work) == [2, 0, 0]
    rows = items.execute(
        "select rec_id::text, position, user_id, item_key, release, scenario, source, score,"
        " extract(epoch from served_at)::int from impressions order by rec_id, position"
    ).fetchall()
    assert len(rows) == 12
    assert rows[0] == (first.rec_id, 0, "anyone", 1, "r1", "home", "ann", 1.0, 1000)
    assert rows[9] == (first.rec_id, 9, "anyone", 2, "r1", "home", None, 0.0, 1000)
    assert rows[10] == (second.rec_id, 0, "🎬", 7, "r1", None, "ann", None, 1000)
    assert rows[11] == (second.rec_id, 1, "🎬", 9, "r1", None, None, None, 1000)


def test_an_answer_that_cannot_be_stored_takes_no_other_with_it(items, database_url):
    bad = [
        answer(user_id="a\0b"),
        answer(user_id="\ud800"),
        answer(sources=["\0"] * 10),
        answer(sources=["a\x1fb"] * 10),
        answer(sources=["one"]),
        answer(rec_id="none"),
        answer(item_keys=np.full(10, 2**31)),
        answer(served_at=float("inf")),
    ]
    good = answer(user_id="", scores=np.full(10, np.inf, np.float32))
    assert in_pool(database_url, lambda pool: record_answers(pool, [*bad, good])) == 1


def test_an_answer_from_before_the_erasure_of_its_user_is_not_stored(items, database_url):
    items.execute(
        "insert into erasures (user_hash, erased_at)"
        " values (sha256(convert_to('gone', 'utf8')), to_timestamp(2000))"
    )
    items.commit()
    answers = [
        answer(user_id="gone", served_at=1999.0),
        answer(user_id="gone", served_at=2001.0),
        answer(user_id="other", served_at=1999.0),
    ]
    assert in_pool(database_url, lambda pool: record_answers(pool, answers)) == 2


def test_the_first_row_of_an_event_id_that_can_be_stored_is(items):
    rows = [
        EventRow("u", "nope", event_id="e"),
        EventRow("v", "a", event_id="e"),
        EventRow("w", "b", event_id="e"),
    ]
    assert statuses(record_events(items, rows)) == ["rejected", "accepted", "duplicate"]
    assert [row[1] for row in stored(items)] == ["v"]


def test_there_may_be_so_many_types_of_events(items):
    known = [f"t{n}" for n in range(MOST_EVENT_TYPES)]
    results = record_events(items, [EventRow("u", "a", name) for name in known])
    assert set(statuses(results)) == {"accepted"}
    results = record_events(items, [EventRow("u", "a", "t7"), EventRow("u", "a", "one more")])
    assert statuses(results) == ["accepted", "rejected"]
    assert results[1].reason.startswith("too_many_event_types: 'one more' would be a new type")
    assert items.execute("select count(*) from event_types").fetchone() == (MOST_EVENT_TYPES,)


def test_an_event_waits_for_the_erasure_of_its_user_and_makes_a_new_one(items, database_url):
    record_events(items, [EventRow("u", "a", event_id="old"), EventRow("v", "a", event_id="v")])
    before = items.execute("select user_key from users where user_id = 'u'").fetchone()
    with ThreadPoolExecutor(1) as threads, connect(database_url) as erasing:
        erasing.execute("select from users where user_id = 'u' for update")
        rows = [EventRow("u", "b", event_id="new"), EventRow("v", "b"), EventRow("u", "a")]
        waiting = threads.submit(
            in_pool, database_url, lambda pool: record_events_async(pool, rows)
        )
        while not items.execute("select from pg_locks where not granted").fetchall():
            items.commit()
        erasing.execute(
            "delete from interactions using users where user_id = 'u'"
            " and interactions.user_key = users.user_key"
        )
        erasing.execute("delete from users where user_id = 'u'")
        erasing.commit()
        assert statuses(waiting.result()) == ["accepted"] * 3
    assert next(row[:3] for row in stored(items) if row[1] == "u") == ("new", "u", "b")
    assert len(stored(items)) == 4
    assert items.execute("select user_key from users where user_id = 'u'").fetchone() > before


ANY_ROW = st.builds(
    EventRow,
    user_id=st.text(max_size=5),
    item_id=st.sampled_from(["a", "b", "nope", ""]) | st.text(max_size=3),
    event_type=st.text(max_size=3),
    value=st.none() | st.floats(),
    occurred_at=st.none() | st.floats(),
    event_id=st.none() | st.sampled_from(["1", "2"]) | st.text(max_size=3),
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.lists(ANY_ROW, max_size=12))
def test_any_batch_is_answered_row_by_row(items, rows):
    with items.transaction(force_rollback=True):
        results = record_events(items, rows)
        assert len(results) == len(rows)
        assert statuses(results).count("accepted") == len(stored(items))
        assert all((result.reason is None) != (result.status == "rejected") for result in results)
        again = record_events(
            items,
            [
                EventRow(row.user_id, row.item_id, event_id=result.event_id)
                for row, result in zip(rows, results, strict=True)
                if result.status == "accepted"
            ],
        )
        assert set(statuses(again)) <= {"duplicate"}
