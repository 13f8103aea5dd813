import numpy as np
import pytest

from ranking.retrieval import covisitation as module
from ranking.retrieval.covisitation import CovisitationConfig, covisitation, pair_weights
from ranking.retrieval.sequence import EventLog


def make_log(histories: list[list[int]], items: int) -> EventLog:
    rows = np.array([row for history in histories for row in history], np.int64)
    offsets = np.cumsum([0, *map(len, histories)]).astype(np.int64)
    n = len(rows)
    values, times = np.ones(n, np.float32), np.arange(n) * 60.0
    return EventLog(rows, times, offsets, items, values, np.arange(n))


def test_pairs_by_hand():
    log = make_log([[0, 1, 2], [1, 0]], 4)
    items, candidates, weights = pair_weights(log, reach=2, backward=0.2)
    found = {
        (i, j): w for i, j, w in zip(items.tolist(), candidates.tolist(), weights, strict=True)
    }
    expected = {
        (0, 1): 1 + 0.2,
        (1, 0): 0.2 + 1,
        (1, 2): 1,
        (2, 1): 0.2,
        (0, 2): 0.5,
        (2, 0): 0.1,
    }
    assert found == pytest.approx(expected)


def test_neighbours_are_ordered_damped_and_padded():
    log = make_log([[0, 1, 2], [1, 0]], 4)
    config = CovisitationConfig(neighbours=3, reach=2, damping=0.5)
    neighbours, scores = covisitation(log, config)
    assert neighbours.tolist() == [[1, 2, -1], [2, 0, -1], [1, 0, -1], [-1, -1, -1]]
    assert scores[0].tolist() == pytest.approx([1.2 / 2, 0.5 / 2**0.5, 0])
    assert (scores[3] == 0).all()


def test_an_item_is_never_its_own_neighbour():
    neighbours, _ = covisitation(make_log([[0, 0, 0, 1]], 2))
    assert neighbours[:, 0].tolist() == [1, 0]


def test_sums_do_not_depend_on_how_many_pairs_are_held(monkeypatch):
    rng = np.random.default_rng(0)
    log = make_log([rng.integers(0, 30, 50).tolist() for _ in range(20)], 30)
    whole = pair_weights(log, 5, 0.5)
    monkeypatch.setattr(module, "_MOST_PENDING", 100)
    for one, other in zip(whole, pair_weights(log, 5, 0.5), strict=True):
        np.testing.assert_allclose(one, other)


@pytest.mark.parametrize(("histories", "items"), [([], 0), ([], 3), ([[0]], 1), ([[0], [1]], 2)])
def test_too_little_to_pair(histories, items):
    neighbours, scores = covisitation(make_log(histories, items))
    assert neighbours.shape == scores.shape == (items, 100)
    assert (neighbours == -1).all()
