"""Served features equal those computed again, and what was altered or came late is found."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from served_answers import ITEMS, serve

from features.database import connect
from features.erasure import erase_user
from features.events import EventRow, record_events
from features.refresh import refresh
from features.skew import skew
from features.spec import names


def altered(report):
    return {row.feature: row.differing for row in report.features if row.differing}


def test_nothing_differs_while_events_arrive_and_a_refresh_runs(sample_url):
    users = [str(number) for number in range(1, 12)]
    stop = threading.Event()

    def post():
        random = np.random.default_rng(5)
        with connect(sample_url) as connection:
            while not stop.is_set():
                age = float(random.choice([0, 0, 5, 86_400, 40 * 86_400, 3000 * 86_400]))
                rows = [
                    EventRow(
                        str(random.integers(1, 14)),
                        str(random.choice(ITEMS)),
                        value=None if random.random() < 0.3 else float(random.integers(1, 11) / 2),
                        occurred_at=time.time() - age,
                    )
                    for _ in range(int(random.integers(1, 4)))
                ]
                record_events(connection, rows)
                connection.commit()

    def refreshes():
        with connect(sample_url) as connection:
            while not stop.is_set():
                refresh(connection)

    threads = [threading.Thread(target=post), threading.Thread(target=refreshes)]
    for thread in threads:
        thread.start()
    try:
        serve(sample_url, users, rounds=8)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    with connect(sample_url) as connection:
        report = skew(connection)
    assert altered(report) == {}, [row for row in report.features if row.differing]
    assert (report.answers, report.other_spec, report.unknown) == (88, 0, 0)
    assert report.without_snapshot == 0
    compared = {row.feature: row.compared for row in report.features}
    assert compared == (
        dict.fromkeys(names("user"), 88)
        | dict.fromkeys(names("item"), 880)
        | dict.fromkeys(names("cross"), 880)
    )


def test_altered_values_are_found_with_an_example(sample_url):
    def change(sample):
        if sample.user_id != "3":
            return sample
        user = sample.user_features.copy()
        user[names("user").index("user_events_7d")] += 2
        items = sample.item_features.copy()
        items[4, names("item").index("item_age_days")] = np.nan
        cross = sample.cross_features.copy()
        cross[1:3, names("cross").index("cross_category_value")] -= [0.25, 0.5]
        return replace(sample, user_features=user, item_features=items, cross_features=cross)

    serve(sample_url, ["2", "3", "4"], change=change)
    with connect(sample_url) as connection:
        report = skew(connection)
        ids = dict(
            connection.execute(
                "select item_key, item_id from items where item_id = any(%s)", (ITEMS,)
            )
        )
    assert altered(report) == {
        "user_events_7d": 1,
        "item_age_days": 1,
        "cross_category_value": 2,
    }
    found = {row.feature: row for row in report.features}
    events = found["user_events_7d"]
    assert events.largest == 2
    assert (events.example.user_id, events.example.item_id) == ("3", None)
    assert events.example.served - events.example.recomputed == 2
    age = found["item_age_days"]
    assert age.largest == np.inf
    assert np.isnan(age.example.served)
    assert age.example.item_id == ids[sorted(ids)[4]]
    value = found["cross_category_value"]
    assert value.largest == pytest.approx(0.5)
    assert value.example.item_id == ids[sorted(ids)[2]]


def test_what_was_committed_later_does_not_count_however_early_it_happened(sample_url):
    serve(sample_url, ["5"])
    with connect(sample_url) as connection:
        before = time.time() - 3600
        record_events(connection, [EventRow("5", item, occurred_at=before) for item in ITEMS])
        record_events(connection, [EventRow("5", "1")])
        connection.commit()
        refresh(connection)
        assert altered(skew(connection)) == {}
        # The same without the snapshot of the read: the late events show.
        connection.execute(
            "update served_features set user_snapshot = pg_current_snapshot(),"
            " item_snapshot = pg_current_snapshot()"
        )
        connection.commit()
        found = altered(skew(connection))
    assert {"user_events", "user_events_1d", "item_events", "item_events_1d"} <= set(found)


def test_what_cannot_be_compared_is_counted(sample_url):
    def change(sample):
        return {
            "1": sample,
            "2": replace(sample, spec_hash="0" * 64),
            "3": replace(sample, item_snapshot=""),
        }[sample.user_id]

    serve(sample_url, ["1", "2", "3"], change=change)
    with connect(sample_url) as connection:
        connection.execute("update served_features set user_id = 'gone' where user_id = '1'")
        connection.commit()
        report = skew(connection)
    assert (report.answers, report.other_spec, report.unknown) == (1, 1, 1)
    assert report.without_snapshot == 1
    assert report.differing == 0
    compared = {row.group: row.compared for row in report.features}
    assert compared == {"user": 1, "item": 0, "cross": 10}


def test_items_that_counted_an_erased_user_are_left_out_until_the_next_refresh(sample_url):
    serve(sample_url, ["1"])
    with connect(sample_url) as connection:
        erase_user(connection, "414")
    serve(sample_url, ["2"])  # the sums are without the user, their as_of is that of before
    with connect(sample_url) as connection:
        report = skew(connection)
        assert (report.answers, report.before_erasure, altered(report)) == (2, 2, {})
        refresh(connection)
    serve(sample_url, ["3"])
    with connect(sample_url) as connection:
        report = skew(connection)
    assert (report.answers, report.before_erasure, altered(report)) == (3, 2, {})
    compared = {row.group: row.compared for row in report.features}
    assert compared == {"user": 3, "item": 10, "cross": 30}


def blocks_of_raw_rows(connection):
    """Return how many pages of events and answers and of their indexes were read."""
    connection.execute("select pg_stat_force_next_flush()")
    connection.commit()
    (found,) = connection.execute(
        "select sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0))"
        " from pg_statio_user_tables where relname like 'answers%' or relname like 'interactions%'"
    ).fetchone()
    connection.commit()
    return int(found)


def test_items_cost_what_is_compared_whatever_else_there_is(sample_url):
    """Refreshes with a few answers, before and after months of answers with other items."""
    with connect(sample_url) as connection:

        def cost():
            connection.execute("truncate served_features")
            for _ in range(5):
                connection.execute(
                    "insert into answers (rec_id, user_id, release, item_keys, scores, sources)"
                    " select gen_random_uuid(), '7', 'r', '{1,2,3}', '{0,0,0}', '{a,a,a}'"
                )
                connection.commit()
                refresh(connection)
                serve(sample_url, ["7"])
            connection.execute("analyze")
            before = blocks_of_raw_rows(connection)
            report = skew(connection)
            assert (report.answers, altered(report)) == (5, {})
            return blocks_of_raw_rows(connection) - before

        first = cost()
        # In the order of time, as a service writes them.
        connection.execute(
            "insert into answers (rec_id, served_at, user_id, release, item_keys, scores, sources)"
            " select gen_random_uuid(), now() - n * interval '10 minutes' - interval '3 days',"
            " (1 + n % 600)::text, 'r', array[700 + n % 5000], '{0}', '{a}'"
            " from generate_series(30000, 1, -1) as n"
        )
        connection.commit()
        refresh(connection)
        assert cost() < 1.2 * first


def test_since_and_limit(sample_url):
    serve(sample_url, ["1", "2", "3"])
    with connect(sample_url) as connection:
        (now,) = connection.execute("select clock_timestamp()").fetchone()
        assert skew(connection, limit=2).answers == 2
        assert skew(connection, since=now).answers == 0


def test_no_answers(connection):
    report = skew(connection)
    assert (report.answers, report.differing) == (0, 0)
    assert [row.feature for row in report.features] == [
        *names("user"), *names("item"), *names("cross")
    ]  # fmt: skip
