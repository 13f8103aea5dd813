"""The feature store: live states equal as-of states, whatever came since the refresh."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from features.database import DatabaseConfig, connect, open_pool
from features.errors import DatabaseUnavailable, SchemaError
from features.events import EventRow, record_events, record_events_async
from features.refresh import refresh
from features.schema import apply, sql_files
from features.spec import names
from features.store import (
    FeatureStore,
    cold_state,
    item_features,
    item_features_async,
    read_catalogue,
    read_interactions,
    states_as_of,
)

DAY = 86_400
ARRAYS = (
    "item_keys", "values", "times", "seen_keys", "features", "category_events",
    "category_value_sums",
)  # fmt: skip


def read(url, user_ids, **options):
    async def go():
        async with open_pool(url, DatabaseConfig()) as pool:
            return await FeatureStore(pool, **options).user_states(user_ids)

    return asyncio.run(go())


def assert_equal(live, replayed):
    for name in ARRAYS:
        mine, theirs = getattr(live, name), getattr(replayed, name)
        assert mine.dtype == theirs.dtype, name
        assert np.array_equal(mine, theirs, equal_nan=True), (name, live.user_id, mine, theirs)
    assert live.category_names == replayed.category_names
    assert live.as_of == replayed.as_of
    assert (live.user_id, live.known) == (replayed.user_id, replayed.known)


def assert_live_equals_as_of(url, user_ids, history_limit=200):
    """Read live, then again as of the moment of that read; only rows of before may count."""
    states = read(url, user_ids, history_limit=history_limit)
    with connect(url) as connection:
        keys = dict(connection.execute("select user_id, user_key from users").fetchall())
        replayed = states_as_of(
            connection,
            [keys[state.user_id] for state in states],
            [state.as_of for state in states],
            history_limit,
        )
    for live, again in zip(states, replayed, strict=True):
        assert_equal(live, again)
    return states


def test_all_users_of_the_sample(shared_sample_url, sample):
    user_ids = [row[0] for row in sample.execute("select user_id from users").fetchall()]
    states = assert_live_equals_as_of(shared_sample_url, user_ids, history_limit=70)
    assert max(len(state.item_keys) for state in states) == 70
    assert sum(len(state.seen_keys) for state in states) == 100_004


def test_events_since_the_refresh_late_ones_too(sample_url):
    now = time.time()
    random = np.random.default_rng(3)
    rows = [
        EventRow(
            user_id=str(random.integers(1, 40)),
            item_id=str(item_id),
            value=None if random.random() < 0.2 else float(random.integers(1, 11) / 2),
            # Years late, on the edges of the window, a moment ago, and now.
            occurred_at=now - float(random.choice([3000 * DAY, 30 * DAY, 30 * DAY - 1, 5, 0])),
        )
        for item_id in random.choice([1, 2, 3, 10, 50, 110, 260], 300)
    ]
    rows.append(EventRow("somebody new", "1"))
    with connect(sample_url) as connection:
        accepted = record_events(connection, rows)
    assert {result.status for result in accepted} == {"accepted"}
    user_ids = [str(number) for number in range(1, 45)] + ["somebody new"]
    before = assert_live_equals_as_of(sample_url, user_ids)
    with connect(sample_url) as connection:
        refresh(connection)
    after = assert_live_equals_as_of(sample_url, user_ids)
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(old.item_keys, new.item_keys)
        assert np.array_equal(old.category_events, new.category_events)


def test_an_event_that_was_in_the_future_at_the_refresh(database_url):
    with connect(database_url) as connection:
        connection.execute("insert into users (user_id) values ('1')")
        connection.execute("insert into items (item_id, categories) values ('a', '{x}')")
        connection.execute(
            "insert into interactions (user_key, item_key, event_type_key, occurred_at)"
            " select 1, 1, 1, clock_timestamp() + n * interval '3 seconds'"
            " from generate_series(-1, 1) as n"
        )
        connection.commit()
        refresh(connection)
    (early,) = assert_live_equals_as_of(database_url, ["1"])
    time.sleep(3.1)
    (late,) = assert_live_equals_as_of(database_url, ["1"])
    assert (early.features[0], late.features[0]) == (2, 3)
    assert (early.category_events[0], late.category_events[0]) == (2, 3)


def test_before_the_first_refresh_every_event_is_live(database_url):
    now = time.time()
    with connect(database_url) as connection:
        connection.execute(
            "insert into items (item_id, categories) values ('a', '{x}'), ('b', '{}')"
        )
        ages = (1, 3600, DAY - 60, 8 * DAY, 8 * DAY + 9, 89 * DAY, 91 * DAY, 4000 * DAY)
        record_events(
            connection,
            [
                EventRow("u", "ab"[place % 2], value=place / 2, occurred_at=now - age)
                for place, age in enumerate(ages)
            ],
        )
        connection.commit()
    (state,) = assert_live_equals_as_of(database_url, ["u"])
    found = dict(zip(names("user"), state.features, strict=True))
    assert [found[f"user_events_{days}d"] for days in (1, 7, 30, 90)] == [3, 3, 5, 6]
    assert found["user_events"] == 8
    assert state.seen_keys.tolist() == [1, 2]


def test_a_refresh_that_lies_before_the_largest_window(database_url):
    """Events that were in its future, by now older than the window, count all the same."""
    now = time.time()
    with connect(database_url) as connection:
        connection.execute("insert into items (item_id, categories) values ('a', '{x}')")
        for age in (300 * DAY, 150 * DAY, 5 * DAY):
            record_events(connection, [EventRow("u", "a", value=2.0, occurred_at=now - age)])
        connection.commit()
        refresh(connection, as_of=datetime.fromtimestamp(now - 200 * DAY, UTC))
        record_events(connection, [EventRow("u", "a", value=3.0, occurred_at=now - 250 * DAY)])
        connection.commit()
    (state,) = assert_live_equals_as_of(database_url, ["u"])
    found = dict(zip(names("user"), state.features, strict=True))
    assert (found["user_events"], found["user_events_90d"], found["user_active_days"]) == (4, 1, 4)
    assert state.category_value_sums.tolist() == [9]


def test_a_state_tells_what_it_saw(sample_url):
    (state,) = read(sample_url, ["1"])
    with connect(sample_url) as connection:
        record_events(connection, [EventRow("1", "1")])
        connection.commit()
        seen, unseen = connection.execute(
            "select count(*) filter (where seen), count(*) filter (where not seen) from ("
            " select pg_visible_in_snapshot(transaction_id, %s::pg_snapshot) as seen"
            " from interactions where user_key = (select user_key from users where user_id = '1')"
            ") as events",
            (state.snapshot,),
        ).fetchone()
    assert (seen, unseen) == (20, 1)
    assert cold_state("1", 0.0).snapshot == ""


EVENT = st.tuples(
    st.integers(1, 2),
    st.sampled_from("abc"),
    st.one_of(st.none(), st.integers(1, 10).map(lambda half: half / 2)),
    st.floats(0, 60 * DAY).map(round),
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(before=st.lists(EVENT, max_size=12), after=st.lists(EVENT, max_size=12))
def test_any_events_before_and_after_a_refresh(database_url, before, after):
    with connect(database_url) as connection:
        connection.execute("truncate interactions, items, users restart identity")
        refresh(connection, full=True)
        connection.execute(
            "insert into items (item_id, categories)"
            " values ('a', '{x,y}'), ('b', '{y}'), ('c', '{}')"
        )
        connection.execute("insert into users (user_id) values ('1'), ('2'), ('3')")
        now = time.time()
        for events in (before, after):
            rows = [
                EventRow(str(user), item, "view", value, now - age)
                for user, item, value, age in events
            ]
            record_events(connection, rows)
            connection.commit()
            if events is before:
                refresh(connection)
    assert_live_equals_as_of(database_url, ["1", "2", "3"], history_limit=5)


def test_order_doubles_and_unknown_users(shared_sample_url):
    asked = ["7", "nobody", "3", "7", "a\0b", "\ud800", "x" * 10_000, "", "🎬 '\""]
    states = read(shared_sample_url, asked)
    assert [state.user_id for state in states] == asked
    assert [state.known for state in states] == [True, False, True, True] + [False] * 5
    assert_equal(states[0], states[3])
    cold = states[1]
    assert len(cold.item_keys) == len(cold.seen_keys) == len(cold.category_names) == 0
    assert dict(zip(names("user"), cold.features, strict=True))["user_events"] == 0


def test_no_users(shared_sample_url):
    assert read(shared_sample_url, []) == []


def test_a_known_user_without_events_differs_from_a_cold_one_in_name_only(database_url):
    with connect(database_url) as connection:
        connection.execute("insert into users (user_id) values ('u')")
    (state,) = read(database_url, ["u"])
    assert state.known
    for name in ARRAYS:
        cold = getattr(cold_state("u", state.as_of), name)
        assert np.array_equal(getattr(state, name), cold, equal_nan=True), name


def test_a_batch_is_one_prepared_statement(shared_sample_url):
    async def go():
        config = DatabaseConfig(pool_min_size=1, pool_max_size=1)
        async with open_pool(shared_sample_url, config) as pool:
            store = FeatureStore(pool)
            for _ in range(3):
                await store.user_states([str(number) for number in range(1, 33)])
            async with pool.connection() as connection:
                query = "select generic_plans + custom_plans, statement from pg_prepared_statements"
                return await (await connection.execute(query)).fetchall()

    runs = [count for count, statement in asyncio.run(go()) if "user_states" in statement]
    assert runs == [3]


def test_all_connections_are_cut(shared_sample_url):
    async def go():
        config = DatabaseConfig(pool_min_size=4, pool_max_size=4)
        async with open_pool(shared_sample_url, config) as pool:
            store = FeatureStore(pool)
            await pool.wait()
            with connect(shared_sample_url) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
            return await asyncio.gather(*(store.user_states([str(n)]) for n in range(1, 33)))

    answers = asyncio.run(go())
    assert all(states[0].known for states in answers)


def test_views_and_functions_are_made_anew_under_an_open_pool(database_url):
    """The prepared statement survives; one that needs a column of another version says so."""

    def apply_changed(change):
        files = [
            replace(file, text=change(file.text)) if "10" <= file.name[:2] < "99" else file
            for file in sql_files()
        ]
        with connect(database_url) as connection:
            assert "20_user_states.sql" in apply(connection, files)

    async def go():
        config = DatabaseConfig(pool_min_size=1, pool_max_size=1)
        async with open_pool(database_url, config) as pool:
            store = FeatureStore(pool)
            assert not (await store.user_states(["u"]))[0].known
            apply_changed(lambda text: text + "\n-- new\n")
            assert not (await store.user_states(["u"]))[0].known
            apply_changed(lambda text: text.replace("live_items", "later_items"))
            with pytest.raises(SchemaError, match=r"live_items.*shortlist db apply"):
                await store.user_states(["u"])

    asyncio.run(go())


def test_the_schema_is_missing(bare_url):
    with pytest.raises(SchemaError, match="shortlist db apply"):
        read(bare_url, ["1"])


def test_no_connection_is_free(shared_sample_url):
    async def go():
        config = DatabaseConfig(pool_min_size=1, pool_max_size=1, pool_timeout_s=0.1)
        async with open_pool(shared_sample_url, config) as pool, pool.connection():
            await FeatureStore(pool).user_states(["1"])

    with pytest.raises(DatabaseUnavailable, match="no database connection is free"):
        asyncio.run(go())


def test_readers_see_old_or_new_while_a_refresh_runs(sample_url):
    """A live count is the same before, during and after: no event twice, none missing."""

    async def go():
        async with open_pool(sample_url, DatabaseConfig()) as pool:
            store = FeatureStore(pool)
            results = await record_events_async(pool, [EventRow("1", "1")] * 5)
            assert len(results) == 5
            expected = (await store.user_states(["1"]))[0].features[0]
            done = asyncio.get_running_loop().run_in_executor(None, run_refresh)
            counts, slowest = [], 0.0
            while not done.done():
                started = time.perf_counter()
                counts.append((await store.user_states(["1"]))[0].features[0])
                slowest = max(slowest, time.perf_counter() - started)
                await asyncio.sleep(0.005)
            await done
            return expected, counts, slowest

    def run_refresh():
        with connect(sample_url) as connection:
            refresh(connection, full=True)

    expected, counts, slowest = asyncio.run(go())
    assert len(counts) > 20
    assert set(counts) == {expected}
    assert slowest < 1.0


def test_the_catalogue(sample):
    catalogue = read_catalogue(sample)
    assert len(catalogue.item_keys) == len(catalogue.item_ids) == len(catalogue.fields) == 9066
    assert (np.diff(catalogue.item_keys) > 0).all()
    assert catalogue.fields[0].startswith(b'{"year": 1995, "title": "Toy Story", "categories"')
    assert catalogue.categories[0][0] == "Adventure"
    assert catalogue.available.all()
    assert np.isfinite(catalogue.created_at).all()
    assert catalogue.features.shape == (9066, len(names("item")))
    assert catalogue.features[:, names("item").index("item_events")].sum() == 100_004
    assert abs(catalogue.features_as_of - time.time()) < 3600
    assert len(read_catalogue(sample, catalogue.watermark).item_ids) == 0


def test_item_features_are_read_at_once(sample_url, sample):
    async def go():
        async with open_pool(sample_url, DatabaseConfig(statement_timeout_ms=20)) as pool:
            return await item_features_async(pool)

    with connect(sample_url) as connection:
        connection.execute("insert into items (item_id, created_at) values ('new', now())")
        connection.commit()
        here = item_features(connection)
        catalogue = read_catalogue(connection)
        point = connection.execute(
            "select unix_seconds(as_of), snapshot::text from refresh_point"
        ).fetchone()
    there = asyncio.run(go())
    for found in (here, there):
        assert np.array_equal(found.item_keys, catalogue.item_keys)
        assert np.array_equal(found.features, catalogue.features, equal_nan=True)
        assert (found.as_of, found.snapshot) == point
    assert (catalogue.features_as_of, catalogue.features_snapshot) == point
    new = dict(zip(names("item"), here.features[-1], strict=True))
    assert (new["item_events"], new["item_events_1d"], new["item_trend_1d"]) == (0, 0, 0)
    assert new["item_age_days"] == 0
    assert np.isnan(new["item_recency_days"])


def test_an_empty_catalogue(connection):
    assert item_features(connection).features.shape == (0, len(names("item")))
    catalogue = read_catalogue(connection)
    assert catalogue.features.shape == (0, len(names("item")))
    assert len(read_interactions(connection).times) == 0


def test_interactions_are_sorted(sample):
    interactions = read_interactions(sample)
    assert len(interactions.times) == 100_004
    order = np.lexsort((interactions.interaction_ids, interactions.times, interactions.user_keys))
    assert np.array_equal(order, np.arange(len(order)))
    assert interactions.user_ids[1] == "1"
    assert interactions.values.dtype == np.float32
