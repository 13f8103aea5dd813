"""Erasing a person: nothing of the user is left, and all sums are as if there had been none."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest
from refresh_history import add_answer, add_event, failed, sums
from slow_partials import differences

from features.database import DatabaseConfig, connect, open_pool
from features.erasure import erase_user, erase_user_async
from features.errors import SchemaError
from features.refresh import refresh
from features.retention import drop_raw_events

NOW = datetime.now(UTC)
TABLES = {
    "answers",
    "served_features",
    "event_ids",
    "interactions",
    "user_daily",
    "user_category_daily",
    "user_category_totals",
    "user_totals",
    "users",
}


def act(connection, user_key, user_id):
    """Let a user see, click and return: every table gets rows of the user."""
    for hours in (1, 3, 50, 3000):
        add_answer(connection, user_id, NOW - timedelta(hours=hours + 1), [1, 2])
        add_event(connection, user_key, 1, NOW - timedelta(hours=hours), 2.0)
        add_event(connection, user_key, 2, NOW - timedelta(hours=hours, minutes=-5))
    connection.execute("insert into event_ids (event_id) values (%s)", (f"event of {user_id}",))
    connection.execute(
        "insert into interactions (user_key, item_key, occurred_at, event_type_key, event_id)"
        " values (%s, 4, %s, 1, %s)",
        (user_key, NOW - timedelta(days=2), f"event of {user_id}"),
    )
    connection.execute(
        "insert into served_features values (now(), gen_random_uuid(), %s, 'r', '', now(),"
        " pg_current_snapshot(), now(), null, '', '{}', '', '')",
        (user_id,),
    )
    connection.commit()


def test_the_sums_are_as_if_the_user_had_never_been_there(people):
    act(people, 1, "u1")
    refresh(people)
    alone = sums(people)
    act(people, 2, "u2")
    refresh(people)
    report = erase_user(people, "u2")
    after = sums(people)
    for table in ("item_daily", "click_daily", "user_daily", "covisit_daily", "user_totals"):
        assert after[table] == alone[table], table
    assert differences(people) == []
    assert failed(people) == []
    assert report.counts == {
        "answers": 4,
        "served_features": 1,
        "event_ids": 1,
        "interactions": 9,
        "user_daily": len(alone["user_daily"]),
        "user_category_daily": len(alone["user_category_daily"]),
        "user_category_totals": len(alone["user_category_totals"]),
        "user_totals": 1,
        "users": 1,
    }


def test_no_row_names_the_user_anywhere(people):
    act(people, 1, "u1")
    act(people, 2, "u2")
    refresh(people)
    people.execute("update interactions set value = 3 where user_key = 2 and item_key = 1")
    add_event(people, 2, 3, NOW)
    people.commit()
    erase_user(people, "u2")
    tables = people.execute(
        "select table_name, column_name from information_schema.columns where table_schema ="
        " 'shortlist' and column_name in ('user_key', 'user_id')"
        " and table_name not in ('user_features')"
    ).fetchall()
    assert len(tables) > 9
    for table, column in tables:
        value = {"user_key": "2", "user_id": "u2"}[column]
        (rows,) = people.execute(
            f"select count(*) from {table} where {column}::text = %s", (value,)
        ).fetchone()
        assert rows == 0, table
    people.commit()
    refresh(people)
    assert differences(people) == []


def test_a_user_of_whom_nothing_is_known(people):
    assert erase_user(people, "never seen").counts == dict.fromkeys(sorted(TABLES), 0)
    assert erase_user(people, "u1").counts == {**dict.fromkeys(TABLES, 0), "users": 1}


def test_answers_to_a_user_who_never_did_anything(people):
    add_answer(people, "visitor", NOW - timedelta(hours=1), [1, 2])
    people.commit()
    refresh(people)
    assert erase_user(people, "visitor").counts["answers"] == 1
    assert sums(people)["item_totals"] == sums(people)["click_daily"] == {}


def test_corrections_of_others_that_wait_are_counted_too(people):
    act(people, 1, "u1")
    act(people, 2, "u2")
    refresh(people)
    people.execute("update interactions set item_key = 3 where user_key = 1 and item_key = 1")
    # One event goes from one user to the one who is erased.
    people.execute("update interactions set user_key = 2 where interaction_id = 2")
    people.commit()
    erase_user(people, "u2")
    assert differences(people) == []
    refresh(people)
    assert differences(people) == []


def test_before_the_first_refresh(people):
    act(people, 1, "u1")
    act(people, 2, "u2")
    erase_user(people, "u2")
    refresh(people)
    assert differences(people) == []
    assert set(sums(people)["user_totals"]) == {1}


def test_after_raw_events_were_dropped_older_counts_stay_without_a_name(people):
    act(people, 1, "u1")
    act(people, 2, "u2")
    drop_raw_events(people, 100)
    before = sums(people)["item_daily"]
    erase_user(people, "u2")
    after = sums(people)
    day = (NOW - timedelta(hours=3000)).date()
    assert after["item_daily"][1, day] == before[1, day]
    assert set(after["user_totals"]) == {1}
    assert {key[0] for key in after["user_daily"]} == {1}
    assert failed(people) == []


def test_a_writer_of_the_same_user_is_waited_for(people, database_url):
    """The event is stored first and goes with the user; none stays behind."""
    with connect(database_url) as writer:
        writer.execute("select 1 from users where user_id = 'u1' for key share")
        add_event(writer, 1, 1, NOW)
        done = threading.Event()

        def run():
            with connect(database_url) as connection:
                erase_user(connection, "u1")
            done.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert not done.wait(0.5)
        writer.commit()
        thread.join()
    assert people.execute("select count(*) from interactions").fetchone() == (0,)


def test_a_hash_keeps_out_what_is_written_later(people):
    erase_user(people, "u1")
    (found,) = people.execute(
        "select count(*) from erasures where user_hash = sha256('u1'::bytea)"
    ).fetchone()
    assert found == 1


def test_on_a_pool(people, database_url):
    act(people, 1, "u1")
    refresh(people)

    async def run():
        config = DatabaseConfig(pool_max_size=1, statement_timeout_ms=1)
        async with open_pool(database_url, config) as pool:
            return await erase_user_async(pool, "u1")

    assert asyncio.run(run()).counts["interactions"] == 9
    assert differences(people) == []


def test_without_a_schema(bare_url):
    with connect(bare_url) as connection, pytest.raises(SchemaError, match="shortlist db apply"):
        erase_user(connection, "u1")


def test_an_erasure_reads_the_items_of_the_user_not_whole_days(people):
    """Each of the user's days holds thousands of events of others with other items."""
    people.execute(
        "insert into interactions (user_key, item_key, occurred_at, event_type_key)"
        " select 2, 3, now() - n * interval '20 seconds', 1 from generate_series(1, 30000) as n"
    )
    for days in range(6):
        for item_key in (1, 2, 4):
            add_event(people, 1, item_key, NOW - timedelta(days=days, hours=1), 1.0)
    people.commit()
    refresh(people)
    people.execute("analyze interactions")
    people.commit()

    def read():
        people.execute("select pg_stat_force_next_flush()")
        people.commit()
        (found,) = people.execute(
            "select sum(idx_blks_hit + idx_blks_read) from pg_statio_user_indexes"
            " where relname like 'interactions%'"
        ).fetchone()
        people.commit()
        return found

    before = read()
    (user_id,) = people.execute("select user_id from users where user_key = 1").fetchone()
    people.commit()
    erase_user(people, user_id)
    # Blocks of the indexes: 820 without one by item, 175 with it.
    assert read() - before < 400
    assert differences(people) == []
