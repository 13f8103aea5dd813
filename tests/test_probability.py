import numpy as np
import pytest

from ranking.fine.probability import calibration, probabilities


def test_probabilities_leave_room_for_none_of_the_candidates():
    scores = np.log(np.array([[1, 2, 6], [1, 2, 6]], np.float32))
    found = probabilities(scores, np.array([[1, 1, 1], [1, 1, 0]], np.float32))
    np.testing.assert_allclose(found, [[0.1, 0.2, 0.6], [0.25, 0.5, 0]], rtol=1e-6)


def test_probabilities_of_extreme_scores_and_of_empty_lists():
    scores = np.array([[5000, 0], [-5000, -5000], [9, 9]], np.float32)
    mask = np.array([[1, 1], [1, 1], [0, 0]], np.float32)
    np.testing.assert_array_equal(probabilities(scores, mask), [[1, 0], [0, 0], [0, 0]])
    assert probabilities(np.empty((2, 0), np.float32), np.empty((2, 0), np.float32)).shape == (2, 0)


def test_calibration_by_hand():
    likely = np.array([[0.5, 0.1], [0.1, 0.3]])
    targets = np.array([[1, 0, 0], [0, 0.5, 0.5]], np.float32)
    found = calibration(likely, targets)
    assert found.lists == 2
    assert found.error == pytest.approx((0.5 + 0.2) / 2)
    assert (found.first_probability, found.first_taken) == (pytest.approx(0.4), 0.75)
    assert (found.listed_probability, found.listed_taken) == (pytest.approx(0.5), 0.75)


def test_what_happens_as_often_as_it_should_has_a_small_error():
    rng = np.random.default_rng(0)
    likely = rng.dirichlet([0.4] * 6, 40_000)
    drawn = (likely.cumsum(axis=1) < rng.random((40_000, 1))).sum(axis=1)
    targets = np.eye(6, dtype=np.float32)[np.minimum(drawn, 5)]
    found = calibration(likely[:, :5], targets)
    assert found.error < 0.01
    assert calibration(likely[:, :5] ** 2, targets).error > 0.05
    assert found.listed_probability == pytest.approx(found.listed_taken, abs=0.01)
