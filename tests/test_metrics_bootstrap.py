import numpy as np
import pytest
from scipy import stats

from ranking.evaluation.bootstrap import Bootstrap


def test_agrees_with_scipy_percentile_intervals():
    values = np.random.default_rng(1).exponential(size=300)
    ours = Bootstrap(resamples=5000).estimate(values)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=5000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours.mean == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)


def test_same_seed_same_interval_and_columns_are_paired():
    a, b = np.random.default_rng(3).normal(size=(2, 50))
    first, second = Bootstrap(seed=4).estimates(np.stack([a, b], axis=1))
    assert Bootstrap(seed=4).estimate(a).low == pytest.approx(first.low)
    assert Bootstrap(seed=4).estimate(b).high == pytest.approx(second.high)
    assert Bootstrap(seed=4).estimate(a) == Bootstrap(seed=4).estimate(a)
    assert Bootstrap(seed=5).estimate(a) != first


def test_a_constant_difference_has_no_width():
    values = np.random.default_rng(6).normal(size=80)
    difference = Bootstrap().difference(values + 0.25, values)
    assert difference.low == pytest.approx(0.25)
    assert difference.high == pytest.approx(0.25)


def test_covers_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(7)
    covered = 0
    for seed in range(200):
        estimate = Bootstrap(resamples=300, seed=seed).estimate(rng.normal(size=60))
        covered += estimate.low <= 0 <= estimate.high
    assert 175 <= covered <= 198


def test_chunks_of_a_large_sample_give_the_same_users_the_same_weight():
    estimate = Bootstrap(resamples=5).estimate(np.ones(1_500_000))
    assert (estimate.mean, estimate.low, estimate.high) == (1.0, 1.0, 1.0)


def test_nan_users_are_left_out_and_no_user_gives_nan():
    assert Bootstrap().estimate(np.array([np.nan, 2.0, np.nan])).high == 2.0
    assert np.isnan(Bootstrap().estimate(np.array([np.nan])).mean)


def test_one_user_has_a_width_of_zero():
    estimate = Bootstrap().estimate(np.array([0.5]))
    assert (estimate.low, estimate.high) == (0.5, 0.5)
