import numpy as np
import pytest

from ranking.evaluation import comparison
from ranking.evaluation.bootstrap import Bootstrap
from ranking.evaluation.comparison import TestSet

RELEVANT = np.array([[0, -1], [1, 2], [3, -1], [4, -1]])
LISTS = {
    "first": np.array([[0, 5], [1, 2], [3, 6], [4, 7]]),
    "none": np.full((4, 2), -1),
}
VALUES = comparison.accuracies(LISTS, RELEVANT)
TEST = TestSet(
    relevant=RELEVANT,
    history_lengths=np.array([1, 2, 3, 40]),
    item_users=np.array([0, 3, 30, 30, 200, 1, 1, 1]),
    users=200,
    vectors=np.eye(8, dtype=np.float32),
)


def test_a_perfect_list_and_an_empty_one():
    found = comparison.estimates(LISTS, VALUES, TEST, Bootstrap())
    assert found["first"]["ndcg_at_10"].mean == pytest.approx(1.0)
    assert found["first"]["recall_at_1"].mean == pytest.approx((3 + 0.5) / 4)
    assert found["first"]["diversity_at_10"].mean == pytest.approx(1.0)
    assert found["none"]["hr_at_10"].high == 0.0
    assert np.isnan(found["none"]["novelty_at_10"].mean)
    assert comparison.coverages(LISTS, 8) == {"first": 1.0, "none": 0.0}


def test_differences_are_paired_and_relative_to_the_other():
    found = comparison.differences(
        VALUES, Bootstrap(), [("ndcg_at_10", "first", "none"), ("mrr", "none", "first")]
    )
    assert found[0].estimate.mean == pytest.approx(1.0)
    assert np.isnan(found[0].relative)
    assert found[1].relative == pytest.approx(-1.0)


def test_slices_part_users_by_history_and_items_by_training_events():
    found = comparison.slices(LISTS, VALUES, TEST, Bootstrap())
    history = [(part.label, part.users) for part in found if part.kind == "history"]
    assert history == [("1", 1), ("2 to 12", 2), ("13 or more", 1)]
    buckets = [(part.label, part.users) for part in found if part.kind == "training_events"]
    # The user with two test items stands in two buckets.
    assert buckets == [("0", 1), ("1 to 4", 1), ("20 to 99", 2), ("100 or more", 1)]
    # Under 5 training events is cold: users 0 to 2, and items 0, 1, 5, 6, 7.
    cold = [
        (part.kind, part.label, part.users) for part in found if part.kind in ("users", "items")
    ]
    assert cold == [
        ("users", "cold", 3),
        ("users", "warm", 1),
        ("items", "cold", 2),
        ("items", "warm", 3),
    ]
    for part in found:
        assert part.metrics["first"]["recall_at_200"].mean == pytest.approx(1.0)


def test_one_user_and_no_user():
    one = [
        ("history", "7", 1),
        ("users", "warm", 1),
        ("training_events", "0", 1),
        ("items", "cold", 1),
    ]
    for users, expected in ((1, one), (0, [])):
        lists = {"first": LISTS["first"][:users]}
        lengths = np.full(users, 7)
        test = TestSet(RELEVANT[:users], lengths, TEST.item_users, users, TEST.vectors)
        values = comparison.accuracies(lists, test.relevant)
        found = comparison.slices(lists, values, test, Bootstrap())
        assert [(part.kind, part.label, part.users) for part in found] == expected
        mean = comparison.estimates(lists, values, test, Bootstrap())["first"]["mrr"].mean
        assert mean == 1.0 if users else np.isnan(mean)
