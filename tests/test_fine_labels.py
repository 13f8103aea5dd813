import numpy as np

from ranking.fine.labels import held_back, labels, list_events
from ranking.retrieval.sequence import EventLog
from ranking.training_config import FineConfig


def make_log(histories: list[list[tuple[int, int]]]) -> EventLog:
    """Of (time, item row) pairs, user by user."""
    pairs = np.array([pair for history in histories for pair in history])
    return EventLog(
        rows=pairs[:, 1],
        times=pairs[:, 0].astype(np.float64),
        offsets=np.cumsum([0, *map(len, histories)]),
        items=100,
        values=np.zeros(len(pairs), np.float32),
        positions=np.arange(len(pairs)),
    )


def lists(found: list[np.ndarray]) -> list[list[int]]:
    return [rows.tolist() for rows in found]


def test_next_items_are_the_latest_events_and_leave_a_history():
    log = make_log([[(at, at) for at in range(20)], [(at, at) for at in range(4)], [(0, 0)]])
    config = FineConfig(label_events=3, label_share=0.25)
    held = held_back(log, config)
    assert held.nonzero()[0].tolist() == [17, 18, 19, 23]
    events = list_events(log, held, config, seed=0)
    assert events.tolist() == [17, 18, 19, 23]
    taken, later = labels(log, events, config)
    assert lists(taken) == [[17], [18], [19], [3]]
    assert lists(later) == [[18, 19], [19], [], []]


def test_of_too_many_lists_each_user_keeps_the_latest():
    log = make_log([[(at, at) for at in range(20)] for _ in range(3)])
    config = FineConfig(label_events=3, label_share=0.25, most_labels=5)
    held = held_back(log, config)
    events = list_events(log, held, config, seed=0)
    assert set(events.tolist()) > {19, 39, 59}
    assert len(set(events.tolist()) & {18, 38, 58}) == 2
    np.testing.assert_array_equal(events, list_events(log, held, config, seed=0))


def test_a_window_holds_what_all_users_took_from_one_moment_on():
    # Six of the 15 events are of moment 10 and later; the third user has nothing before it, the
    # fourth nothing after it.
    log = make_log(
        [
            [(1, 1), (2, 2), (3, 3), (10, 4), (11, 5), (12, 4)],
            [(4, 7), (5, 8), (6, 9), (12, 6)],
            [(11, 1), (11, 2)],
            [(7, 1), (8, 2), (9, 3)],
        ]
    )
    config = FineConfig(labels="window", window_share=0.4)
    held = held_back(log, config)
    np.testing.assert_array_equal(held, log.times >= 10)
    events = list_events(log, held, config, seed=0)
    assert events.tolist() == [3, 9]
    taken, later = labels(log, events, config)
    assert lists(taken) == [[4, 5], [6]]
    assert lists(later) == [[], []]


def test_events_of_one_moment_leave_no_window():
    log = make_log([[(1, 1), (1, 2)], [(1, 3)]])
    config = FineConfig(labels="window")
    held = held_back(log, config)
    assert not held.any()
    assert not len(list_events(log, held, config, seed=0))
