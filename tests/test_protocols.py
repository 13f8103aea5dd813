from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import InputError
from ranking.protocols import hide_request_time, leave_last_out, time_cut, time_split


def interactions(events):
    """Sorted arrays from (user, item, time) in the order of their interaction ids."""
    rows = sorted(
        ((user, time, number, item) for number, (user, item, time) in enumerate(events, 1)),
        key=lambda row: row[:3],
    )
    users, times, ids, items = (np.array(column) for column in zip(*rows, strict=True))
    return SimpleNamespace(
        user_keys=users.astype(np.int64),
        item_keys=items.astype(np.int64),
        times=times.astype(np.float64),
        interaction_ids=ids.astype(np.int64),
    )


def empty():
    whole, real = np.zeros(0, dtype=np.int64), np.zeros(0)
    return SimpleNamespace(user_keys=whole, item_keys=whole, times=real, interaction_ids=whole)


def test_the_last_event_is_held_out_and_ties_follow_the_order_of_arrival():
    data = interactions([(1, 10, 5), (1, 11, 5), (1, 12, 3), (2, 20, 9), (3, 30, 1), (3, 31, 2)])
    split = leave_last_out(data)
    assert split.user_keys.tolist() == [1, 3]
    assert split.relevant.tolist() == [[11], [31]]
    assert split.as_of.tolist() == [5, 2]
    assert split.before_ids.tolist() == [2, 6]
    assert data.item_keys[split.starts[0] : split.stops[0]].tolist() == [12, 10]
    assert split.skipped == {"single_event": 1, "repeated": 0}
    # User 2 has nothing to be tested on, so its only event stays in training.
    assert data.item_keys[split.train].tolist() == [12, 10, 20, 30]


def test_a_hidden_request_comes_after_the_previous_event_whatever_the_order_of_arrival():
    # User 1's previous event arrived last of all, and shares its second with an earlier one.
    data = interactions([(1, 10, 5), (1, 12, 900), (2, 20, 1), (2, 21, 3), (2, 22, 3), (1, 11, 5)])
    split = hide_request_time(data, leave_last_out(data))
    assert split.as_of.tolist() == [5, 3]
    assert split.before_ids.tolist() == [7, 5]
    assert split.relevant.tolist() == [[12], [22]]
    # Gaps between training events are 0 (user 1) and 2 (user 2); that to the test tells nothing.
    assert split.gap == 1.0
    for user, start, stop in zip(split.user_keys, split.starts, split.stops, strict=True):
        at = split.user_keys.tolist().index(user)
        mine = data.user_keys == user
        known = (data.times < split.as_of[at]) | (
            (data.times == split.as_of[at]) & (data.interaction_ids < split.before_ids[at])
        )
        assert data.item_keys[mine & known].tolist() == data.item_keys[start:stop].tolist()


def test_a_time_split_has_no_request_time_to_hide():
    data = interactions([(1, 10, 1), (1, 11, 2), (2, 10, 1), (2, 12, 2)])
    with pytest.raises(InputError, match="use it with leave-last-out"):
        hide_request_time(data, time_split(data, 0.5))


def test_a_user_whose_last_item_is_an_old_one_is_skipped_and_counted():
    split = leave_last_out(interactions([(1, 10, 1), (1, 11, 2), (1, 10, 3), (2, 1, 1), (2, 2, 2)]))
    assert split.user_keys.tolist() == [2]
    assert split.skipped == {"single_event": 0, "repeated": 1}


def test_only_single_events_or_none_at_all_give_an_empty_split():
    for data in (interactions([(1, 10, 1), (2, 10, 2)]), empty()):
        split = leave_last_out(data)
        assert split.relevant.shape == (0, 1)
        assert split.train.all()


def test_time_split_tests_all_new_items_after_the_cut():
    data = interactions(
        [
            *((1, 10, 1), (1, 11, 2), (1, 12, 8), (1, 13, 9), (1, 10, 10)),
            *((2, 20, 3), (3, 30, 9), (4, 40, 1), (4, 40, 8)),
        ]
    )
    split = time_split(data, cut=8.0)
    assert split.user_keys.tolist() == [1]
    assert split.relevant.tolist() == [[12, 13]]
    assert split.as_of.tolist() == [8.0]
    assert (split.starts.tolist(), split.stops.tolist()) == ([0], [2])
    assert split.skipped == {"one_sided": 2, "repeated": 1}
    assert data.times[split.train].max() < 8.0


def test_events_of_the_second_of_the_cut_stay_together():
    times = np.array([1.0, 2, 3, 4, 5, 6, 7, 7, 7, 7])
    assert time_cut(times, 0.1) == 7.0
    data = interactions([(1, n, time) for n, time in enumerate(times)])
    assert time_split(data, 0.1).train.sum() == 6


def test_time_split_refuses_what_cannot_be_split():
    with pytest.raises(InputError, match="all 2 events are in the test window"):
        time_split(interactions([(1, 1, 5), (1, 2, 5)]))
    with pytest.raises(InputError, match=r"share of the test window is 1\.5"):
        time_cut(np.ones(3), 1.5)
    with pytest.raises(InputError, match="0 events"):
        time_split(empty())


@st.composite
def logs(draw):
    event = st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(0, 12))
    return interactions(draw(st.lists(event, min_size=2, max_size=60)))


@given(logs())
def test_leave_last_out_never_leaks(data):
    split = leave_last_out(data)
    for n, user in enumerate(split.user_keys):
        mine = data.user_keys == user
        known = mine & split.train
        history = slice(split.starts[n], split.stops[n])
        assert data.interaction_ids[history].tolist() == data.interaction_ids[known].tolist()
        # Everything that training knows of the user came before the test event.
        order = list(zip(data.times[known], data.interaction_ids[known], strict=True))
        assert all(moment < (split.as_of[n], split.before_ids[n]) for moment in order)
        assert split.relevant[n, 0] not in data.item_keys[history]
    tested = int((~split.train).sum())
    assert tested == len(split.user_keys) + split.skipped["repeated"]
    assert len(np.unique(data.user_keys)) == tested + split.skipped["single_event"]


@given(logs(), st.floats(0.05, 0.9))
def test_time_split_never_leaks(data, share):
    if len(np.unique(data.times)) < 2 or time_cut(data.times, share) == data.times.min():
        return
    split = time_split(data, share)
    assert data.times[split.train].max() < split.cut <= data.times[~split.train].min()
    for n, user in enumerate(split.user_keys):
        mine = data.user_keys == user
        history = data.item_keys[split.starts[n] : split.stops[n]]
        assert history.tolist() == data.item_keys[mine & split.train].tolist()
        wanted = set(split.relevant[n][split.relevant[n] >= 0].tolist())
        assert wanted == set(data.item_keys[mine & ~split.train].tolist()) - set(history.tolist())
        assert wanted
    users = len(split.user_keys) + sum(split.skipped.values())
    assert users == len(np.unique(data.user_keys))
