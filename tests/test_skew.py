"""Served features equal those computed again, and what was altered or came late is found."""

import asyncio
import threading
import time
import uuid
from dataclasses import replace

import numpy as np
import pytest

from features.database import DatabaseConfig, connect, open_pool
from features.encode import encode_cross
from features.events import EventRow, record_events
from features.refresh import refresh
from features.served import ServedSample, record_served
from features.skew import skew
from features.spec import names, spec_hash
from features.store import FeatureStore, item_features_async

ITEMS = ["1", "2", "10", "110", "260", "296", "318", "356", "480", "593"]


def sample_of(state, items, rows, categories, rec_id=None):
    """Make what a service stores of one answer: raw values of some candidates."""
    order = sorted({*state.category_names, *(name for held in categories for name in held)})
    flags = np.array([[name in held for name in order] for held in categories], np.uint8)
    user = dict(
        zip(
            state.category_names,
            zip(state.category_events, state.category_value_sums, strict=True),
            strict=True,
        )
    )
    sums = np.array([user.get(name, (0, 0)) for name in order], np.float32)
    cross = encode_cross(sums[None, :, 0], sums[None, :, 1], flags, np.arange(len(rows))[None])
    return ServedSample(
        rec_id=rec_id or str(uuid.uuid4()),
        served_at=state.as_of,
        user_id=state.user_id,
        release="r",
        spec_hash=spec_hash(),
        user_as_of=state.as_of,
        user_snapshot=state.snapshot,
        item_as_of=items.as_of,
        item_snapshot=items.snapshot,
        user_features=state.features,
        item_keys=items.item_keys[rows],
        item_features=items.features[rows],
        cross_features=cross[0],
    )


def serve(url, user_ids, rounds=1, change=lambda sample: sample):
    """Read users and items as a service does and store what it would have served."""

    async def go():
        async with open_pool(url, DatabaseConfig()) as pool:
            store = FeatureStore(pool)
            with connect(url) as connection:
                found = connection.execute(
                    "select item_key, categories from items where item_id = any(%s)"
                    " order by item_key",
                    (ITEMS,),
                ).fetchall()
            for _ in range(rounds):
                items = await item_features_async(pool)
                rows = np.searchsorted(items.item_keys, [key for key, _ in found])
                states = await store.user_states(user_ids)
                held = [categories for _, categories in found]
                samples = [change(sample_of(state, items, rows, held)) for state in states]
                assert await record_served(pool, samples) == len(samples)

    asyncio.run(go())


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
