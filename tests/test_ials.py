import numpy as np
import pytest

from ranking.evaluation import baselines
from ranking.evaluation.events import TrainingEvents
from ranking.evaluation.ials import Factors, Ials, factorise, solve


def training(users, items):
    rows = np.concatenate([np.array(user, dtype=np.int64) for user in users])
    offsets = np.concatenate([[0], np.cumsum([len(user) for user in users])]).astype(np.int64)
    return TrainingEvents(rows, np.arange(len(rows), dtype=np.float64), offsets, items)


def random_events(users=40, items=25, seed=0):
    rng = np.random.default_rng(seed)
    return training([rng.permutation(items)[: rng.integers(1, 15)] for _ in range(users)], items)


def loss(x, users, items, alpha, regularisation):
    """The loss of Rendle et al. 2022, equations 1 to 4 with the exponent 1, written out."""
    scores = users @ items.T
    happened = (x * (scores - 1) ** 2).sum()
    everything = alpha * (scores**2).sum()
    of_users = ((x.sum(axis=1) + alpha * x.shape[1]) * (users**2).sum(axis=1)).sum()
    of_items = ((x.sum(axis=0) + alpha * x.shape[0]) * (items**2).sum(axis=1)).sum()
    return happened + everything + regularisation * (of_users + of_items)


def test_solved_users_are_the_minimum_of_the_loss():
    events = random_events()
    x = events.matrix().toarray().astype(np.float64)
    items = np.random.default_rng(1).standard_normal((25, 4)).astype(np.float32)
    users = solve(events.matrix(), items, 0.2, 0.05).astype(np.float64)
    best = loss(x, users, items, 0.2, 0.05)
    for user in range(len(users)):
        for direction in np.eye(4):
            for step in (-1e-3, 1e-3):
                moved = users.copy()
                moved[user] += step * direction
                assert loss(x, moved, items, 0.2, 0.05) > best


def test_every_sweep_lowers_the_loss():
    events = random_events()
    x = events.matrix().toarray().astype(np.float64)
    found = []
    for sweeps in (1, 2, 4, 8):
        factors = factorise(events, 6, 0.3, 0.01, sweeps)
        users = solve(events.matrix(), factors.items, 0.3, 0.01)
        found.append(loss(x, users.astype(np.float64), factors.items, 0.3, 0.01))
    assert found == sorted(found, reverse=True)
    assert found[0] - found[-1] > 1.0


def test_rows_of_any_length_are_solved_alike(monkeypatch):
    events = random_events(users=60)
    items = np.random.default_rng(2).standard_normal((25, 5)).astype(np.float32)
    whole = solve(events.matrix(), items, 0.1, 0.02)
    monkeypatch.setattr("ranking.evaluation.ials._CELLS_A_BLOCK", 7)
    np.testing.assert_allclose(solve(events.matrix(), items, 0.1, 0.02), whole, atol=1e-5)


def test_users_of_two_tastes_get_their_own_and_the_same_seed_gives_the_same():
    rng = np.random.default_rng(3)
    users = [rng.permutation(6)[:4] + 6 * (user % 2) for user in range(30)]
    events = training(users, items=12)
    factors = factorise(events, 2, 0.1, 0.01)
    listed = baselines.rank(Ials(events, factors), events, np.arange(30), np.zeros(30), 2)
    for user in range(30):
        assert set(listed[user] // 6) == {user % 2}
    np.testing.assert_array_equal(factorise(events, 2, 0.1, 0.01).items, factors.items)


def test_a_user_is_folded_in_by_the_latest_items_alone():
    events = training([[0, 1, 2], [2], [3, 4]], items=5)
    factors = Factors(np.random.default_rng(4).standard_normal((5, 3)).astype(np.float32), 0.1, 0.1)
    scores = Ials(events, factors, latest=1).scores(np.array([0, 1]), np.zeros(2))
    assert scores[0] == pytest.approx(scores[1])
    whole = Ials(events, factors).scores(np.array([0, 1]), np.zeros(2))
    assert whole[0] != pytest.approx(whole[1])
