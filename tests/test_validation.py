"""NDCG@10 between passes, against a slow recomputation through the serving inputs."""

import math

import numpy as np
import pytest
import torch

from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import TOWER_EVENTS, EventLog, tower_inputs
from ranking.retrieval.validation import last_events
from ranking.training_config import TowerConfig
from ranking.types import Histories

ITEMS = 50


def random_log(lengths, seed=0):
    rng = np.random.default_rng(seed)
    n = sum(lengths)
    return EventLog(
        rows=rng.integers(0, ITEMS, n),
        values=np.where(rng.random(n) < 0.2, np.nan, rng.random(n)).astype(np.float32),
        times=rng.random(n).cumsum() * 100,
        offsets=np.r_[0, np.cumsum(lengths)],
        positions=np.arange(n),
        items=ITEMS,
    )


def last_two(log):
    """Mark the last two events of users with more than three."""
    lengths = np.diff(log.offsets)
    return np.repeat(lengths > 3, lengths) & (log.before_end() < 2)


def model_of(seed=0):
    torch.manual_seed(seed)
    model = TwoTower(TowerConfig(width=8), torch.rand(ITEMS, 3))
    with torch.no_grad():
        model.ids.normal_()
    return model.eval()


def slow_ndcg(model, log, places):
    with torch.no_grad():
        vectors = model.item_vectors().numpy()
    gains = []
    for place in places:
        begin = max(b for b in log.offsets if b <= place)
        seen = log.rows[begin:place]
        history = Histories(
            rows=seen[None],
            values=log.values[None, begin:place],
            times=log.times[None, begin:place],
            lengths=np.array([len(seen)]),
            now=log.times[[place]],
        )
        feeds = tower_inputs(history, vectors)
        with torch.no_grad():
            user = model.users(*map(torch.from_numpy, feeds.values())).numpy()[0]
        scores = vectors @ user
        target = log.rows[place]
        others = [row for row in range(ITEMS) if row != target and row not in set(seen.tolist())]
        rank = 1 + sum(scores[row] >= scores[target] for row in others)
        gains.append(1 / math.log2(rank + 1) if rank <= 10 else 0.0)
    return float(np.mean(gains))


@pytest.mark.parametrize("scores", [1, 130, 2**20])
def test_ndcg_is_that_of_a_slow_recomputation(scores, monkeypatch):
    monkeypatch.setattr("ranking.retrieval.validation._SCORES", scores)  # blocks of 1, 2, all
    lengths = [4, 9, 3, TOWER_EVENTS + 20, 12, 40]
    log = random_log(lengths)
    held = last_two(log)
    validation = last_events(log, held, 1000, 0)
    assert validation is not None
    places = [log.offsets[user + 1] - 1 for user, length in enumerate(lengths) if length > 3]
    assert validation.targets.tolist() == log.rows[places].tolist()
    model = model_of()
    found = validation.ndcg(model)
    assert 0 < found == pytest.approx(slow_ndcg(model, log, places))


def test_users_are_drawn_and_only_held_events_are_taken():
    log = random_log([8] * 30)
    held = last_two(log)
    drawn = last_events(log, held, 5, seed=1)
    again = last_events(log, held, 5, seed=1)
    assert drawn is not None
    assert again is not None
    assert len(drawn.targets) == 5
    assert (drawn.histories.now == again.histories.now).all()
    ends = log.times[log.offsets[1:] - 1]
    assert np.isin(drawn.histories.now, ends[np.isin(ends, log.times[held])]).all()
    assert last_events(log, np.zeros(len(log.rows), np.bool_), 5, 1) is None
    assert last_events(log, held, 0, 1) is None


def test_a_model_that_says_nothing_finds_nothing():
    log = random_log([8] * 10)
    validation = last_events(log, last_two(log), 10, 0)
    assert validation is not None
    model = model_of()
    for constant in (0.0, math.nan):
        with torch.no_grad():
            for weights in model.parameters():
                weights.fill_(constant)
        assert validation.ndcg(model) == 0.0


def test_training_mode_is_left_as_it_was():
    log = random_log([8] * 10)
    validation = last_events(log, last_two(log), 10, 0)
    assert validation is not None
    model = model_of().train()
    before = torch.random.get_rng_state()
    validation.ndcg(model)
    assert model.training
    assert (torch.random.get_rng_state() == before).all()
