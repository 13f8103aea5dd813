import numpy as np
import pytest

from ranking.retrieval.ease import EaseConfig, ease
from ranking.retrieval.sequence import EventLog


def make_log(histories: list[list[int]], items: int) -> EventLog:
    rows = np.concatenate([np.array(history, np.int64) for history in histories])
    return EventLog(
        rows=rows,
        times=np.arange(len(rows), dtype=np.float64),
        offsets=np.cumsum([0, *map(len, histories)]),
        items=items,
        values=np.ones(len(rows), np.float32),
        positions=np.arange(len(rows)),
    )


def dense(histories: list[list[int]], items: int, regularisation: float) -> np.ndarray:
    """Each column by its own ridge regression on the other items."""
    x = np.zeros((len(histories), items))
    for user, history in enumerate(histories):
        x[user, history] = 1
    weights = np.zeros((items, items))
    for item in range(items):
        rest = np.delete(np.arange(items), item)
        gram = x[:, rest].T @ x[:, rest] + regularisation * np.eye(len(rest))
        weights[rest, item] = np.linalg.solve(gram, x[:, rest].T @ x[:, item])
    return weights


@pytest.mark.parametrize(("users", "items"), [(30, 12), (9, 40)])
def test_weights_are_ridge_regressions_on_the_other_items(users, items):
    rng = np.random.default_rng(users)
    histories = [rng.integers(0, items, rng.integers(1, 10)).tolist() for _ in range(users)]
    found, weights = ease(make_log(histories, items), EaseConfig(regularisation=3, neighbours=5))
    wanted = dense(histories, items, 3)
    assert found.shape == weights.shape == (items, 5)
    for item in range(items):
        best = np.sort(wanted[item])[::-1][:5]
        np.testing.assert_allclose(weights[item], np.maximum(best, 0), atol=1e-6)
        real = found[item] >= 0
        assert real.sum() == (best > 1e-12).sum()
        np.testing.assert_allclose(wanted[item, found[item][real]], weights[item][real], atol=1e-6)


def test_left_out_where_both_sides_are_large_and_without_events():
    log = make_log([[0, 1], [1, 2], [0, 2]], 4)
    assert ease(log, EaseConfig(most=2))[0].shape == (4, 0)
    assert ease(log, EaseConfig(most=3, neighbours=9))[0].shape == (4, 3)
