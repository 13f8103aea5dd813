"""Refreshing the feature views: exact, repeatable, safe to run twice and to kill."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psycopg
import pytest
from slow_features import item_features, read_raw

from features.database import connect
from features.errors import SchemaError
from features.refresh import VIEWS, checks, refresh
from features.spec import names
from features.store import read_catalogue

DAY = 86_400


def contents(connection):
    return {
        view: connection.execute(f"select * from {view} order by 1, 2").fetchall()
        for view in VIEWS
        if view != "item_features"
    }


def failed(connection):
    return [check.check for check in checks(connection) if not check.passed]


def add_events(connection, ages, item_key=1, user_key=1):
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into interactions (user_key, item_key, event_type, value, occurred_at)"
            " values (%s, %s, 'view', 3.5, now() - %s * interval '1 second')",
            [(user_key, item_key, age) for age in ages],
        )
    connection.commit()


@pytest.fixture
def small(connection):
    connection.execute("insert into users (user_id) values ('u'), ('v')")
    connection.execute(
        "insert into items (item_id, categories, created_at) values"
        " ('a', '{x,y}', now() - interval '400 days'), ('b', '{}', null)"
    )
    connection.commit()
    return connection


def test_the_view_equals_a_slow_recomputation_at_every_edge(small):
    edges = [days * DAY + shift for days in (0, 1, 7, 30, 365, 400) for shift in (1, 3600, 80_000)]
    add_events(small, edges)
    add_events(small, edges[::3], user_key=2)
    report = refresh(small)
    events, items = read_raw(small)
    moment = round(report.as_of.timestamp() * 1e6)
    catalogue = read_catalogue(small)
    for key, row in zip(catalogue.item_keys.tolist(), catalogue.features, strict=True):
        expected = item_features(events, items[key][0], key, moment)
        for name, value in zip(names("item"), row, strict=True):
            assert np.array_equal(value, expected[name], equal_nan=True), (key, name)
    assert failed(small) == []


def test_the_sample_passes_its_checks(sample):
    found = checks(sample)
    assert len(found) == 9
    assert failed(sample) == []
    assert all(check.detail for check in found)


def test_a_second_refresh_moves_only_time(small):
    add_events(small, [5, 10 * DAY])
    first = refresh(small)
    before = contents(small)
    second = refresh(small)
    assert contents(small) == before
    assert second.as_of > first.as_of
    assert second.watermark == first.watermark == 2
    assert list(second.seconds) == list(VIEWS)
    rows = small.execute("select view, count(*) from feature_refreshes group by view").fetchall()
    assert sorted(rows) == sorted((view, 2) for view in VIEWS)


def test_progress_is_reported(small):
    steps = []
    refresh(small, lambda *step: steps.append(step))
    assert [step[1] for step in steps] == list(range(len(VIEWS) + 1))
    assert {step[2] for step in steps} == {len(VIEWS)}


def test_two_at_once(small, database_url):
    add_events(small, range(1, 50))

    def one(_):
        with connect(database_url) as connection:
            return refresh(connection).watermark

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(one, range(3))) == [49] * 3
    assert failed(small) == []


def test_an_open_writer_is_waited_for_and_its_event_counted(small, database_url):
    """The writer took its number before the refresh began and commits after that."""
    add_events(small, [9])
    with connect(database_url) as writer:
        writer.execute(
            "insert into interactions (user_key, item_key, event_type, occurred_at)"
            " values (2, 1, 'view', now())"
        )
        add_events(small, [8])
        finished = threading.Event()

        def run():
            with connect(database_url) as connection:
                refresh(connection)
            finished.set()

        thread = threading.Thread(target=run)
        thread.start()
        assert not finished.wait(0.8)
        # Other writers are not held up for longer than one try to lock.
        started = time.monotonic()
        add_events(small, [7])
        assert time.monotonic() - started < 1.0
        writer.commit()
        thread.join()
    (events,) = small.execute("select sum(item_events) from item_features").fetchone()
    assert events == 4
    assert failed(small) == []


@pytest.mark.parametrize("step", [0, 3, len(VIEWS)])
def test_killed_in_the_middle_and_run_again(small, database_url, step):
    add_events(small, [10 * DAY, 5])
    refresh(small)
    before = contents(small)
    point = small.execute("select watermark, as_of from refresh_point").fetchone()
    add_events(small, [1, 2, 3])

    def kill(view, done, total):
        if done == step:
            small.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )

    with pytest.raises(psycopg.OperationalError), connect(database_url) as victim:
        refresh(victim, kill)
    small.commit()
    assert contents(small) == before
    assert small.execute("select watermark, as_of from refresh_point").fetchone() == point
    small.commit()
    refresh(small)
    assert failed(small) == []
    assert small.execute("select sum(events) from user_features").fetchone() == (5,)


def test_a_check_that_fails_is_first(small):
    add_events(small, [DAY])
    refresh(small)
    small.execute(
        "insert into interactions (user_key, item_key, event_type, occurred_at)"
        " values (1, 1, 'view', now() + interval '1 hour')"
    )
    found = checks(small)
    assert (found[0].check, found[0].passed) == ("no event lies in the future", False)
    assert found[0].detail == "1 events more than five minutes ahead"


def test_a_planted_leak_fails_the_checks(small):
    add_events(small, [DAY, 5])
    refresh(small)
    small.execute("update refresh_point set as_of = now() - interval '12 hours'")
    assert "no view holds an event of its as_of or later" in failed(small)


def test_a_view_that_computes_a_feature_otherwise_fails_the_checks(small):
    """Every feature of the spec is compared with its as-of value, without being listed."""
    # Every 97th item is compared.
    small.execute(
        "insert into items (item_key, item_id, created_at) overriding system value"
        " values (97, 'checked', now() - interval '3 days')"
    )
    small.execute(
        "insert into interactions (user_key, item_key, event_type, value, occurred_at)"
        " values (1, 97, 'view', 2, now() - interval '2 days')"
    )
    small.commit()
    refresh(small)
    assert failed(small) == []
    small.execute("alter materialized view item_features rename to right_features")
    for wrong in names("item"):
        columns = ", ".join(
            f"{name} + 1 as {name}" if name == wrong else name for name in names("item")
        )
        small.execute(
            f"create view item_features as select item_key, {columns} from right_features"
        )
        assert "refreshed item features equal their as-of values" in failed(small), wrong
        small.execute("drop view item_features")


def test_without_a_schema(bare_url):
    with connect(bare_url) as connection:
        with pytest.raises(SchemaError, match="shortlist db apply"):
            refresh(connection)
        with pytest.raises(SchemaError, match="shortlist db apply"):
            checks(connection)


def test_an_empty_database(connection):
    assert refresh(connection).watermark == 0
    assert failed(connection) == []
