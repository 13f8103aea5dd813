"""As-of values in SQL equal a slow recomputation from raw events, exactly."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_features import (
    item_features,
    read_answers,
    read_raw,
    user_categories,
    user_features,
    user_past,
)

from features.errors import InputError
from features.refresh import refresh
from features.spec import WINDOWS_DAYS, names
from features.store import (
    item_features_as_of,
    read_interactions,
    states_as_of,
    user_features_as_of,
)

DAY = 86_400


def assert_same(found, expected, what):
    for name, value in expected.items():
        at = list(expected).index(name)
        assert np.array_equal(found[at], value, equal_nan=True), (what, name, found[at], value)


def in_order(features, group):
    assert tuple(features) == names(group)
    return features


@pytest.fixture(scope="module")
def raw(shared_sample_url):
    from features.database import connect

    with connect(shared_sample_url) as connection:
        return *read_raw(connection), read_interactions(connection)


def test_items_of_the_sample(sample, raw):
    events, items, interactions = raw
    random = np.random.default_rng(7)
    rows = random.choice(len(events), 150, replace=False)
    keys = interactions.item_keys[rows]
    moments = interactions.times[rows]
    # Half of them between events, and on the very edge of each window.
    edges = [days * DAY for days in WINDOWS_DAYS]
    moments[::2] += random.choice([*edges, 0.000001, 1e6], len(moments[::2]))
    found = item_features_as_of(sample, keys, moments)
    for key, moment, row in zip(keys.tolist(), moments.tolist(), found, strict=True):
        expected = item_features(events, items[key][0], key, round(moment * 1e6))
        assert_same(row, in_order(expected, "item"), (key, moment))


def test_users_of_the_sample(sample, raw):
    events, items, interactions = raw
    random = np.random.default_rng(8)
    rows = random.choice(len(events), 120, replace=False)
    keys, moments = interactions.user_keys[rows], interactions.times[rows]
    ties = np.where(random.random(len(rows)) < 0.5, interactions.interaction_ids[rows], 0)
    found = states_as_of(sample, keys, moments, 50, ties)
    for key, moment, tie, state in zip(keys.tolist(), moments, ties.tolist(), found, strict=True):
        micros = round(moment * 1e6)
        past = user_past(events, key, micros, tie)
        expected = user_features(events, key, micros, tie)
        assert_same(state.features, in_order(expected, "user"), (key, moment))
        assert state.item_keys.tolist() == [event.item_key for event in past][-50:]
        assert state.times.tolist() == [event.moment / 1e6 for event in past][-50:]
        assert state.values.tolist() == [event.value for event in past][-50:]
        assert state.seen_keys.tolist() == sorted({event.item_key for event in past})
        order, counts, sums = user_categories(past, items)
        assert state.category_names == order
        assert state.category_events.tolist() == counts
        assert state.category_value_sums.tolist() == sums
        assert state.as_of == moment
        assert state.known


def test_a_users_own_event_is_not_its_history(sample, raw):
    _, _, interactions = raw
    states = states_as_of(sample, interactions.user_keys[:500], interactions.times[:500])
    for at, state in enumerate(states):
        assert (state.times < interactions.times[at]).all()


START = 1_500_000_000
# Few moments, so that ties and window edges are common.
EDGES = [START + DAY * days + more for days in (0, *WINDOWS_DAYS) for more in (0, 3600, DAY - 1)]
SECONDS = st.one_of(
    st.integers(0, 200 * DAY).map(lambda seconds: START + seconds), st.sampled_from(EDGES)
)
EVENTS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(1, 4),
        st.one_of(st.none(), st.integers(-8, 10).map(lambda half: half / 2)),
        SECONDS,
    ),
    max_size=40,
)
ANSWERS = st.lists(
    st.tuples(
        # The last one has no event and is not in the table of users.
        st.integers(1, 4),
        st.lists(st.integers(1, 4), min_size=1, max_size=4, unique=True),
        SECONDS,
    ),
    max_size=12,
)


def insert(connection, events, answers):
    """Put (user, item, value, seconds) and (user, items, seconds) into an empty database."""
    connection.rollback()  # what an example that failed left
    connection.execute(
        "truncate interactions, answers, items, users, event_types restart identity cascade"
    )
    connection.execute(
        "insert into users (user_id) select 'u' || n from generate_series(1, 3) as n"
    )
    connection.execute(
        "insert into items (item_id, categories, created_at) values"
        " ('a', '{x,y}', null), ('b', '{y}', to_timestamp(1500000000)),"
        " ('c', '{}', to_timestamp(1400000000)), ('d', '{z}', now())"
    )
    connection.execute("insert into event_types (event_type) values ('view')")
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into interactions (user_key, item_key, value, occurred_at, event_type_key)"
            " values (%s, %s, %s, to_timestamp(%s), 1)",
            events,
        )
        cursor.executemany(
            "insert into answers (rec_id, user_id, release, item_keys, scores, sources, served_at)"
            " select gen_random_uuid(), 'u' || %s, 'r', keys, array_fill(0, dims),"
            " array_fill(''::text, dims), to_timestamp(%s)"
            " from (select %s::integer[] as keys, array[%s] as dims) as shown",
            [(user, moment, items, len(items)) for user, items, moment in answers],
        )


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(events=EVENTS, answers=ANSWERS, moments=st.lists(SECONDS, min_size=1, max_size=5))
def test_any_events_and_answers(connection, events, answers, moments):
    insert(connection, events, answers)
    raw, items = read_raw(connection)
    shown = read_answers(connection)
    times = np.repeat([*moments, *[event[3] for event in events[:3]]], 4).astype(np.float64)
    keys = np.tile([1, 2, 3, 4], len(times) // 4)
    found = item_features_as_of(connection, keys, times)
    for key, moment, row in zip(keys.tolist(), times.tolist(), found, strict=True):
        expected = item_features(raw, items[key][0], key, int(moment) * 1_000_000, shown)
        assert_same(row, expected, (key, moment))
    users = np.minimum(keys, 3)
    for key, moment, state in zip(
        users.tolist(), times.tolist(), states_as_of(connection, users, times), strict=True
    ):
        micros = int(moment) * 1_000_000
        assert_same(state.features, user_features(raw, key, micros), (key, moment))
        order, counts, sums = user_categories(user_past(raw, key, micros), items)
        assert (state.category_names, state.category_events.tolist()) == (order, counts)
        assert state.category_value_sums.tolist() == sums
    for tie in (0, len(events) // 2, len(events)):
        ties = np.full(len(users), tie)
        for key, moment, row in zip(
            users.tolist(),
            times.tolist(),
            user_features_as_of(connection, users, times, ties),
            strict=True,
        ):
            expected = user_features(raw, key, int(moment) * 1_000_000, tie)
            assert_same(row, expected, (key, moment, tie))
    connection.rollback()


def test_a_click_follows_its_answer_within_24_hours(connection):
    """Eight answers of two items each, ten days ago; four clicks, by hand."""
    noon = START - START % DAY + DAY // 2
    answers = [(1, [1, 2], noon + hour * 3600) for hour in range(8)]
    events = [
        (1, 1, None, noon),  # at the very moment of the first answer: a click
        (1, 1, None, noon + 7 * 3600 + DAY),  # 24 h after the last one: a click
        (1, 2, None, noon + 7 * 3600 + DAY + 1),  # a second later: none
        (1, 2, None, noon - 1),  # before any answer: none
        (2, 1, None, noon + 60),  # not shown to this user: none
        (1, 3, None, noon + 60),  # not in the answer: none
    ]
    insert(connection, events, answers)
    at = names("item").index("item_click_rate")
    days = [noon, noon + DAY, noon + 3 * DAY]
    found = item_features_as_of(connection, [1, 1, 1, 2, 3], [*days, days[2], days[2]])[:, at]
    # No whole day before; 1 of 16 until midnight; 2 of 16 at last.
    assert np.isnan(found[0])
    assert found[1] == np.float32((1 + 20 * 1 / 16) / (8 + 20))
    assert found[2] == np.float32((2 + 20 * 2 / 16) / (8 + 20))
    assert found[3] == np.float32((0 + 20 * 2 / 16) / (8 + 20))
    assert found[4] == np.float32(2 / 16)
    connection.rollback()


def test_only_rows_that_a_snapshot_saw_count(connection):
    insert(connection, [(1, 1, 2.0, START), (1, 2, 3.0, START + 1)], [(1, [1, 2], START)])
    connection.commit()
    seen = connection.execute("select pg_current_snapshot()::text").fetchone()[0]
    connection.commit()
    before = (
        item_features_as_of(connection, [1, 2], [START + 9 * DAY] * 2),
        user_features_as_of(connection, [1], [START + 9 * DAY]),
    )
    connection.execute(
        "insert into interactions (user_key, item_key, occurred_at, event_type_key)"
        " select 1, 1, to_timestamp(%s + n), 1 from generate_series(1, 5) as n",
        (START,),
    )
    connection.execute(
        "insert into answers (rec_id, user_id, release, item_keys, scores, sources, served_at)"
        " values (gen_random_uuid(), 'u1', 'r', '{1}', '{0}', '{\"\"}', to_timestamp(%s))",
        (START,),
    )
    connection.commit()
    items = item_features_as_of(connection, [1, 2], [START + 9 * DAY] * 2, seen)
    users = user_features_as_of(connection, [1], [START + 9 * DAY], seen=seen)
    assert np.array_equal(items, before[0], equal_nan=True)
    assert np.array_equal(users, before[1], equal_nan=True)
    assert item_features_as_of(connection, [1], [START + 9 * DAY])[0, 0] == 6
    assert user_features_as_of(connection, [1], [START + 9 * DAY])[0, 0] == 7


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(events=EVENTS, answers=ANSWERS)
def test_partials_stand_for_raw_events_that_were_dropped(connection, events, answers):
    """From the day on that all windows lie in whole days, nothing changes when raw rows go."""
    insert(connection, events, answers)
    connection.commit()
    refresh(connection, full=True)
    raw, items = read_raw(connection)
    shown = read_answers(connection)
    raw_since = START - START % DAY + 60 * DAY
    # Windows of 90 days that begin at midnight, the last of them long after all events.
    times = np.repeat([raw_since + days * DAY for days in (92, 120, 1000)], 4).astype(np.float64)
    keys = np.tile([1, 2, 3, 4], 3)
    users = np.minimum(keys, 3)
    before = states_as_of(connection, users, times)
    connection.commit()
    # As whole partitions that go: nothing is remembered for a correction.
    connection.execute("set local session_replication_role = replica")
    for table, moment in (("interactions", "occurred_at"), ("answers", "served_at")):
        connection.execute(f"delete from {table} where {moment} < to_timestamp(%s)", (raw_since,))
    connection.execute(
        "update refresh_point set raw_since = (to_timestamp(%s) at time zone 'utc')::date",
        (raw_since,),
    )
    found = item_features_as_of(connection, keys, times)
    for key, moment, row in zip(keys.tolist(), times.tolist(), found, strict=True):
        expected = item_features(raw, items[key][0], key, int(moment) * 1_000_000, shown)
        assert_same(row, expected, (key, moment))
    after = states_as_of(connection, users, times)
    for one, other in zip(before, after, strict=True):
        expected = user_features(raw, int(one.user_id[1:]), int(one.as_of) * 1_000_000)
        assert_same(other.features, expected, (one.user_id, one.as_of))
        assert other.category_names == one.category_names
        assert np.array_equal(other.category_events, one.category_events)
        assert np.array_equal(other.category_value_sums, one.category_value_sums)
        # What is there again later cannot be told from what was new then.
        later = {event.item_key for event in raw if event.moment >= other.as_of * 1e6}
        assert set(one.seen_keys) - later <= set(other.seen_keys) <= set(one.seen_keys)
    connection.rollback()


def test_unknown_keys_give_rows_all_the_same(sample):
    assert np.isnan(item_features_as_of(sample, [10**6, 1], [1e9, 2e9])[0]).all()
    states = states_as_of(sample, [10**6, 1], [2e9, 2e9])
    assert [state.known for state in states] == [False, True]
    assert len(states[0].item_keys) == 0


def test_no_requests(sample):
    assert item_features_as_of(sample, [], []).shape == (0, len(names("item")))
    assert states_as_of(sample, [], []) == []


@pytest.mark.parametrize("moment", [np.nan, np.inf])
def test_a_moment_that_is_none(sample, moment):
    with pytest.raises(InputError, match="finite unix seconds"):
        item_features_as_of(sample, [1], [moment])


def test_lengths_that_differ(sample):
    with pytest.raises(InputError, match="equally many"):
        states_as_of(sample, [1, 2], [1e9])
