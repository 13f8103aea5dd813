"""As-of values in SQL equal a slow recomputation from raw events, exactly."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slow_features import item_features, read_raw, user_categories, user_features, user_past

from features.errors import InputError
from features.spec import names
from features.store import item_features_as_of, read_interactions, states_as_of

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
    moments[::2] += random.choice([7 * DAY, 30 * DAY, 365 * DAY, 0.000001, 1e6], len(moments[::2]))
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


SECONDS = st.integers(0, 3 * 365 * DAY).map(lambda seconds: 1_500_000_000 + seconds)
EVENTS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(1, 4),
        st.one_of(st.none(), st.integers(-8, 10).map(lambda half: half / 2)),
        # Few moments, so that ties and window edges are common.
        st.one_of(SECONDS, st.sampled_from([1_500_000_000 + DAY * n for n in (0, 7, 30, 365)])),
    ),
    max_size=40,
)


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(events=EVENTS, moments=st.lists(SECONDS, min_size=1, max_size=5))
def test_any_events(connection, events, moments):
    connection.execute("truncate interactions, items, users restart identity cascade")
    connection.execute(
        "insert into users (user_id) select 'u' || n from generate_series(1, 3) as n"
    )
    connection.execute(
        "insert into items (item_id, categories, created_at) values"
        " ('a', '{x,y}', null), ('b', '{y}', to_timestamp(1500000000)),"
        " ('c', '{}', to_timestamp(1400000000)), ('d', '{z}', now())"
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into interactions (user_key, item_key, value, occurred_at, event_type)"
            " values (%s, %s, %s, to_timestamp(%s), 'view')",
            events,
        )
    raw, items = read_raw(connection)
    times = np.repeat([*moments, *[event[3] for event in events[:3]]], 4).astype(np.float64)
    keys = np.tile([1, 2, 3, 4], len(times) // 4)
    found = item_features_as_of(connection, keys, times)
    for key, moment, row in zip(keys.tolist(), times.tolist(), found, strict=True):
        expected = item_features(raw, items[key][0], key, int(moment) * 1_000_000)
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
