"""Refreshing: what is new is added, repeatable, safe to run twice and to kill, never in the way."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from refresh_history import add_answer, add_event, failed, sums
from slow_partials import differences

from features.database import connect
from features.errors import ConfigError, SchemaError
from features.refresh import FULL_STEPS, STEPS, refresh

HISTORY = ("interactions", "item_daily", "user_daily", "user_category_daily", "covisit_daily")


def ago(**span):
    return datetime.now(UTC) - timedelta(**span)


def add_events(connection, seconds, user_key=1):
    for number, age in enumerate(seconds):
        add_event(connection, user_key, 1 + number % 4, ago(seconds=age), 1.5)
    connection.commit()


def counted(connection):
    (events,) = connection.execute("select coalesce(sum(events), 0) from user_totals").fetchone()
    connection.commit()
    return events


def test_an_empty_database(connection):
    report = refresh(connection)
    assert (report.watermark, report.full) == (0, True)
    assert failed(connection) == []


def test_without_a_schema(bare_url):
    with connect(bare_url) as connection, pytest.raises(SchemaError, match="shortlist db apply"):
        refresh(connection)


def test_a_second_refresh_moves_only_time(people):
    add_events(people, [5, 400, 10 * 86_400])
    add_answer(people, "u1", ago(hours=1), [1, 2])
    people.commit()
    first = refresh(people)
    before = sums(people)
    second = refresh(people)
    assert sums(people) == before
    assert second.as_of > first.as_of
    assert second.watermark == first.watermark == 3
    assert (first.full, second.full) == (True, False)
    assert (list(first.seconds), list(second.seconds)) == (list(FULL_STEPS), list(STEPS))
    rows = people.execute("select view, count(*) from feature_refreshes group by view").fetchall()
    assert dict(rows) == {step: (step in FULL_STEPS) + 1 for step in STEPS}


def test_the_record_of_old_refreshes_leaves(people):
    refresh(people)
    people.execute("update feature_refreshes set finished_at = now() - interval '31 days'")
    people.commit()
    refresh(people)
    rows = people.execute("select view from feature_refreshes").fetchall()
    assert sorted(view for (view,) in rows) == sorted(FULL_STEPS)


def test_progress_is_reported(people):
    add_events(people, [5])
    refresh(people)
    steps = []
    refresh(people, lambda *step: steps.append(step))
    assert [step[0] for step in steps] == [*STEPS, "corrections"]
    assert [step[1] for step in steps] == list(range(len(STEPS) + 1))
    assert {step[2] for step in steps} == {len(STEPS)}


def test_late_events_change_their_own_day_only(people):
    add_events(people, [5, 86_400, 30 * 86_400])
    refresh(people)
    before = sums(people)["item_daily"]
    moment = ago(days=20)
    add_event(people, 2, 1, moment, 4.0)
    people.commit()
    refresh(people)
    after = sums(people)["item_daily"]
    assert {key for key in after if after[key] != before.get(key)} == {(1, moment.date())}
    assert differences(people) == []


def test_events_of_the_future_are_counted_when_their_time_has_come(people):
    add_event(people, 1, 1, ago(seconds=5))
    add_event(people, 1, 2, ago(seconds=-1.2))
    add_event(people, 1, 3, ago(seconds=4))
    people.commit()
    refresh(people)
    assert counted(people) == 2
    assert differences(people) == []
    time.sleep(1.3)
    refresh(people)
    assert counted(people) == 3
    assert differences(people) == []


def test_windows_lose_what_they_move_past(people):
    now = ago()
    for hours in (23, 25, 7 * 24 - 1, 7 * 24 + 1, 90 * 24 - 1):
        add_event(people, 1, 1, now - timedelta(hours=hours))
    people.commit()
    refresh(people, as_of=now - timedelta(hours=3))
    assert people.execute("select window_events from item_totals").fetchone() == ([2, 4, 4, 5],)
    people.commit()
    refresh(people, as_of=now)
    assert people.execute("select window_events from item_totals").fetchone() == ([1, 3, 4, 5],)
    assert differences(people) == []


def test_other_windows_are_counted_for_every_item(people):
    add_events(people, [5, 86_400, 86_400 * 40])
    refresh(people)
    people.execute("update refresh_point set window_days = '{2}'")
    people.execute("update item_totals set window_events = '{7}'")
    people.commit()
    assert not refresh(people).full
    assert differences(people) == []


def test_a_window_that_begins_before_the_raw_events_is_refused(people):
    people.execute("update refresh_point set raw_since = current_date - 80")
    people.commit()
    with pytest.raises(ConfigError, match="a window of 90 days begins before"):
        refresh(people)


def test_as_of_lies_neither_in_the_future_nor_before_what_is_counted(people):
    add_events(people, [100, 5000])
    with pytest.raises(ConfigError, match="expected a moment up to now"):
        refresh(people, as_of=ago(seconds=-60))
    moment = ago(seconds=1000)
    refresh(people, as_of=moment)
    assert counted(people) == 1
    with pytest.raises(ConfigError, match="expected a later moment, or a full refresh"):
        refresh(people, as_of=moment - timedelta(seconds=1))
    refresh(people)
    assert counted(people) == 2
    refresh(people, full=True, as_of=moment)
    assert counted(people) == 1
    assert differences(people) == []


def test_the_snapshot_sees_exactly_what_is_counted(people, database_url):
    add_events(people, [5, 6])
    with connect(database_url) as writer:
        # Has a transaction id, but no event yet.
        writer.execute("select pg_current_xact_id()")
        refresh(people)
        add_event(writer, 1, 1, ago(days=1))
        writer.commit()
    seen = people.execute(
        "select pg_visible_in_snapshot(transaction_id, snapshot), interaction_id <= watermark"
        " from interactions cross join refresh_point order by interaction_id"
    ).fetchall()
    assert seen == [(True, True), (True, True), (False, False)]


def test_clicks_of_a_late_answer_and_of_two_answers_count_once(people):
    add_answer(people, "u1", ago(hours=5), [1, 2])
    add_event(people, 1, 1, ago(hours=4))
    add_event(people, 1, 3, ago(hours=4))
    people.commit()
    refresh(people)
    add_answer(people, "u1", ago(hours=6), [1, 3])
    add_answer(people, "u1", ago(hours=29), [1, 3])
    add_answer(people, "nobody", ago(hours=6), [4])
    people.commit()
    refresh(people)
    found = people.execute(
        "select item_key, impressions, clicks from item_totals order by item_key"
    ).fetchall()
    assert found == [(1, 3, 1), (2, 1, 0), (3, 2, 1), (4, 1, 0)]
    assert differences(people) == []


def test_seen_items_are_made_distinct_once_half_of_them_may_be_repeated(people):
    for _ in range(70):
        add_event(people, 1, 1, ago(hours=1))
        add_event(people, 1, 2, ago(hours=1))
        people.commit()
        refresh(people)
    (size,) = people.execute("select octet_length(seen_items) / 4 from user_totals").fetchone()
    assert size <= 2 * 2 + 64
    assert differences(people) == []


def test_two_at_once(people, database_url):
    refresh(people)
    add_events(people, range(1, 50))

    def one(_):
        with connect(database_url) as connection:
            return refresh(connection).watermark

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(one, range(3))) == [49] * 3
    assert differences(people) == []


def test_an_open_writer_is_waited_for_and_its_event_counted(people, database_url):
    """The writer took its number before the refresh began and commits after that."""
    add_events(people, [9])
    with connect(database_url) as writer:
        add_event(writer, 2, 1, ago())
        add_events(people, [8])
        finished = threading.Event()

        def run():
            with connect(database_url) as connection:
                refresh(connection)
            finished.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert not finished.wait(0.8)
        # Other writers go on between two tries to lock.
        add_events(people, [7])
        writer.commit()
        thread.join()
    assert counted(people) == 4
    assert differences(people) == []


@pytest.mark.parametrize("full", [False, True])
def test_readers_and_writers_never_wait(people, database_url, full):
    """While a refresh stands before its commit, all is read as it was, and events come in."""
    add_events(people, [5, 10 * 86_400])
    refresh(people)
    before = sums(people)
    add_events(people, [3, 86_400])
    seen = []

    def look(step, done, total):
        if done == total:
            with connect(database_url) as reader:
                reader.execute("set lock_timeout = '1ms'")
                seen.append(sums(reader))
                add_event(reader, 1, 1, ago(seconds=1))
                reader.execute("select * from item_features, user_features limit 1")
                reader.execute("select * from user_states(array['u1'], 10, now())")

    refresh(people, look, full=full)
    assert seen == [before]
    assert counted(people) == 4
    assert differences(people) == []


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("step", [0, 3, "last"])
def test_a_killed_backend_changes_nothing_and_the_next_refresh_is_right(
    people, database_url, step, full
):
    add_events(people, [10 * 86_400, 5])
    refresh(people)
    before = sums(people)
    add_events(people, [1, 2, 3])
    people.execute("update interactions set item_key = 2 where interaction_id = 1")
    people.commit()

    def kill(_, done, total):
        if done == (total if step == "last" else step):
            people.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )

    with pytest.raises(psycopg.OperationalError), connect(database_url) as victim:
        refresh(victim, kill, full=full)
    people.commit()
    assert sums(people) == before
    refresh(people)
    assert counted(people) == 5
    assert differences(people) == []


def test_no_refresh_reads_the_history_from_end_to_end(people):
    """Its cost is that of what is new: the tables that grow are read through indexes only."""
    people.execute(
        "insert into interactions (user_key, item_key, occurred_at, event_type_key)"
        " select 1 + n % 3, 1 + n % 4, now() - n * interval '1 minute', 1"
        " from generate_series(1, 30000) as n"
    )
    people.commit()
    refresh(people)

    def scans():
        people.execute("select pg_stat_force_next_flush()")
        people.commit()
        (found,) = people.execute(
            "select coalesce(sum(seq_tup_read), 0) from pg_stat_user_tables"
            " where relname = any(%s) or relname like 'interactions%%'",
            (list(HISTORY),),
        ).fetchone()
        people.commit()
        return found

    before = scans()
    add_events(people, range(1, 100))
    refresh(people)
    # Partitions ahead and the default one are empty or nearly so: reading them is as cheap.
    assert scans() - before < 1000
    assert differences(people) == []


def test_no_refresh_reads_all_answers_of_a_period(people):
    """Those that lay in the future then are found by their time, whatever was shown before."""
    people.execute(
        "insert into answers (rec_id, served_at, user_id, release, item_keys, scores, sources)"
        " select gen_random_uuid(), now() + (n - 80000) * interval '1 second', 'p' || n, 'r',"
        " '{}', '{}', '{}' from generate_series(1, 80000) as n"
    )
    people.commit()
    refresh(people)

    def blocks():
        people.execute("select pg_stat_force_next_flush()")
        people.commit()
        (found,) = people.execute(
            "select sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))"
            " from pg_statio_user_tables where relname like 'answers%'"
        ).fetchone()
        people.commit()
        return int(found)

    before = blocks()
    add_answer(people, "u2", ago(seconds=1), [1, 2])
    add_event(people, 2, 2, ago(seconds=0))
    people.commit()
    refresh(people)
    # An index of all of them has 500.
    assert blocks() - before < 250
    assert differences(people) == []
