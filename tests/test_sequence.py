import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_histories, make_items

from features.states import Interactions
from ranking.retrieval.sequence import (
    TOWER_EVENTS,
    event_log,
    latest,
    log_gaps,
    tower_inputs,
)
from ranking.types import Histories


def interactions(users: list[int], items: list[int]) -> Interactions:
    n = len(users)
    return Interactions(
        user_keys=np.array(users, np.int64),
        item_keys=np.array(items, np.int64),
        interaction_ids=np.arange(n),
        values=np.ones(n, np.float32),
        times=np.arange(n) * 10.0,
        user_ids={},
    )


def test_log_leaves_out_unknown_items_and_unwanted_events():
    happened = interactions([1, 1, 1, 2, 3], [10, 99, 12, 99, 11])
    log = event_log(happened, np.array([10, 11, 12]))
    assert log.rows.tolist() == [0, 2, 1]
    assert log.offsets.tolist() == [0, 2, 3]
    assert log.positions.tolist() == [0, 2, 4]
    assert log.users.tolist() == [0, 0, 1]
    assert log.before_end().tolist() == [1, 0, 0]
    assert log.counts().tolist() == [1, 1, 1]
    kept = event_log(happened, np.array([10, 11, 12]), np.array([0, 1, 1, 1, 1], bool))
    assert kept.rows.tolist() == [2, 1]


def test_log_of_nothing():
    log = event_log(interactions([], []), np.empty(0, np.int64))
    assert (len(log.rows), log.offsets.tolist(), log.items) == (0, [0], 0)
    assert event_log(interactions([1], [5]), np.empty(0, np.int64)).offsets.tolist() == [0]


def test_select_renumbers_users_and_keeps_positions():
    log = event_log(interactions([1, 1, 2, 3, 3], [0, 1, 2, 0, 2]), np.arange(3))
    part = log.select(np.array([True, False, False, True, True]))
    assert part.rows.tolist() == [0, 0, 2]
    assert part.offsets.tolist() == [0, 1, 3]
    assert part.positions.tolist() == [0, 3, 4]
    assert log.select(np.zeros(5, bool)).offsets.tolist() == [0]


def test_gap_of_an_event_runs_to_the_next_and_of_the_last_to_the_request():
    times = np.array([[100.0, 160.0, 0.0], [50.0, 40.0, 60.0]])
    gaps = log_gaps(times, np.array([2, 3]), np.array([170.0, 60.0]))
    expected = np.log1p([[60.0, 10.0, 0.0], [0.0, 20.0, 0.0]])
    np.testing.assert_allclose(gaps, expected, rtol=1e-6)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 9))
def test_latest_keeps_the_end_of_each_history(lengths, limit):
    histories = make_histories(make_items(20), lengths)
    short = latest(histories, limit)
    assert short.rows.shape == (len(lengths), max(1, min(max(lengths), limit)))
    for b, length in enumerate(lengths):
        n = min(length, limit)
        assert short.lengths[b] == n
        for name in ("rows", "values", "times"):
            whole, part = getattr(histories, name)[b], getattr(short, name)[b]
            assert part[:n].tolist() == whole[length - n : length].tolist()
        assert (short.rows[b, n:] == -1).all()


def test_tower_inputs_gather_vectors_and_cut_long_histories():
    items = make_items(300)
    histories = make_histories(items, [0, 3, TOWER_EVENTS + 20])
    feeds = tower_inputs(histories, items.vectors)
    assert feeds["history"].shape == (3, TOWER_EVENTS, 8)
    assert feeds["lengths"].tolist() == [0, 3, TOWER_EVENTS]
    assert (feeds["history"][0] == 0).all()
    np.testing.assert_array_equal(feeds["history"][1, 2], items.vectors[histories.rows[1, 2]])
    np.testing.assert_array_equal(feeds["history"][2, -1], items.vectors[histories.rows[2, -1]])


@pytest.mark.parametrize("n", [0, 5])
def test_tower_inputs_without_any_history(n):
    nothing = Histories(
        np.full((2, 1), -1),
        np.zeros((2, 1), np.float32),
        np.zeros((2, 1)),
        np.zeros(2, np.int64),
        np.zeros(2),
    )
    feeds = tower_inputs(nothing, make_items(5).vectors[:n])
    assert feeds["history"].shape == (2, 1, 8)
    assert feeds["lengths"].tolist() == [0, 0]
