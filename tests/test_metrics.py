import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.errors import InputError
from ranking.evaluation import metrics

RANKED = np.array([[3, 1, 0, 2], [5, 4, -1, -1], [2, 0, 1, 3]])
RELEVANT = np.array([[1, 2, 9], [6, -1, -1], [2, -1, -1]])


def test_hits_mark_the_relevant_places():
    expected = [[False, True, False, True], [False] * 4, [True, False, False, False]]
    assert metrics.hits(RANKED, RELEVANT).tolist() == expected
    assert metrics.relevant_counts(RELEVANT).tolist() == [3, 1, 1]


def test_hand_computed_values():
    hit, counts = metrics.hits(RANKED, RELEVANT), metrics.relevant_counts(RELEVANT)
    np.testing.assert_allclose(metrics.recall_at(hit, counts, 2), [1 / 3, 0, 1])
    np.testing.assert_allclose(metrics.recall_at(hit, counts, 4), [2 / 3, 0, 1])
    np.testing.assert_allclose(metrics.hit_rate_at(hit, 1), [0, 0, 1])
    np.testing.assert_allclose(metrics.reciprocal_rank(hit), [1 / 2, 0, 1])
    # 1/log2(3) + 1/log2(5) over 1 + 1/log2(3) + 1/log2(4)
    np.testing.assert_allclose(
        metrics.ndcg_at(hit, counts, 4), [(0.63093 + 0.43068) / 2.13093, 0, 1], atol=1e-5
    )
    # At 2 the ideal list has two of the three relevant items.
    np.testing.assert_allclose(
        metrics.ndcg_at(hit, counts, 2), [0.63093 / 1.63093, 0, 1], atol=1e-5
    )


def test_a_list_shorter_than_k_counts_as_misses():
    hit = metrics.hits(np.array([[7]]), np.array([[7, 8]]))
    counts = np.array([2])
    assert metrics.recall_at(hit, counts, 10).tolist() == [0.5]
    np.testing.assert_allclose(metrics.ndcg_at(hit, counts, 10), [1 / 1.63093], atol=1e-5)


def test_padding_is_never_a_hit():
    hit = metrics.hits(np.array([[-1, -1]]), np.array([[-1, -1]]))
    assert not hit.any()
    assert metrics.ndcg_at(hit, np.array([0]), 2).tolist() == [0.0]


def test_an_item_listed_twice_is_refused():
    with pytest.raises(InputError, match="list 1 names item row 4 twice"):
        metrics.hits(np.array([[1, 2], [4, 4]]), np.array([[1], [4]]))


def test_users_must_match():
    with pytest.raises(InputError, match="2 users, relevant items of 1"):
        metrics.hits(np.array([[1], [2]]), np.array([[1]]))


def test_coverage_novelty_and_diversity_by_hand():
    assert metrics.coverage_at(RANKED, 2, 8) == 6 / 8
    # One user in 7 knows an item: (1 + 1) / (7 + 1) = 2 bits; nobody: 3 bits; all: 0 bits.
    item_users = np.array([1, 0, 7])
    lists = np.array([[0, 1], [2, -1], [-1, -1]])
    np.testing.assert_allclose(metrics.novelty_at(lists, 2, item_users, 7), [2.5, 0.0, np.nan])
    vectors = np.array([[1, 0], [0, 2], [3, 0]], dtype=np.float32)
    lists = np.array([[0, 1, 2], [0, 2, -1], [1, -1, -1]])
    np.testing.assert_allclose(
        metrics.diversity_at(lists, 3, vectors), [1 - 1 / 3, 0.0, np.nan], atol=1e-6
    )
    np.testing.assert_allclose(metrics.diversity_at(lists, 2, vectors), [1.0, 0.0, np.nan])


@st.composite
def rankings(draw):
    seed = draw(st.integers(0, 2**32 - 1))
    users, k, items = draw(st.integers(1, 8)), draw(st.integers(1, 15)), draw(st.integers(15, 40))
    rng = np.random.default_rng(seed)
    ranked = np.stack([rng.permutation(items)[:k] for _ in range(users)])
    relevant = np.stack([rng.permutation(items)[:7] for _ in range(users)])
    ranked[np.arange(k) >= rng.integers(0, k + 1, size=(users, 1))] = -1
    relevant[np.arange(7) >= rng.integers(1, 8, size=(users, 1))] = -1
    return ranked, relevant


@given(rankings())
def test_agrees_with_ir_measures(case):
    ranked, relevant = case
    qrels = [
        ir_measures.Qrel(str(u), str(i), 1) for u, row in enumerate(relevant) for i in row[row >= 0]
    ]
    run = [
        ir_measures.ScoredDoc(str(u), str(i), float(-place))
        for u, row in enumerate(ranked)
        for place, i in enumerate(row)
        if i >= 0
    ]
    hit, counts = metrics.hits(ranked, relevant), metrics.relevant_counts(relevant)
    ours = {
        ir_measures.parse_measure("nDCG@5"): metrics.ndcg_at(hit, counts, 5),
        ir_measures.parse_measure("R@5"): metrics.recall_at(hit, counts, 5),
        ir_measures.parse_measure("Success@5"): metrics.hit_rate_at(hit, 5),
        ir_measures.parse_measure("RR"): metrics.reciprocal_rank(hit),
    }
    for measure in ir_measures.iter_calc(list(ours), qrels, run):
        expected = ours[measure.measure][int(measure.query_id)]
        assert measure.value == pytest.approx(expected, abs=1e-6)


@given(rankings())
def test_bounds_and_monotone_in_k(case):
    ranked, relevant = case
    hit, counts = metrics.hits(ranked, relevant), metrics.relevant_counts(relevant)
    before = np.zeros(len(ranked))
    for k in range(1, 20):
        recall, rate = metrics.recall_at(hit, counts, k), metrics.hit_rate_at(hit, k)
        gain = metrics.ndcg_at(hit, counts, k)
        assert ((recall >= before) & (recall <= rate) & (rate <= 1)).all()
        assert ((gain >= 0) & (gain <= 1 + 1e-12)).all()
        before = recall


@given(rankings(), st.randoms(use_true_random=False))
def test_names_of_items_and_order_of_users_do_not_matter(case, random):
    ranked, relevant = case
    names = list(range(40))
    random.shuffle(names)
    renamed = np.append(names, -1)  # -1 stays -1
    users = list(range(len(ranked)))
    random.shuffle(users)
    counts = metrics.relevant_counts(relevant)
    plain = metrics.ndcg_at(metrics.hits(ranked, relevant), counts, 5)
    other = metrics.hits(renamed[ranked][users], renamed[relevant][users])
    np.testing.assert_array_equal(metrics.ndcg_at(other, counts[users], 5), plain[users])
