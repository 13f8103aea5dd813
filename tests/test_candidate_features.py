import numpy as np
import pytest
from worlds import make_histories, make_items, mean_tower

from features.spec import names
from ranking.fine.candidate_features import candidate_features
from ranking.fine.inputs import RANKER_EVENTS, ranker_inputs
from ranking.retrieval.retriever import RetrievalConfig, Retriever
from ranking.types import Candidates, Covisits, Histories, Items

CONFIG = RetrievalConfig(
    candidates=30, quotas={"item_to_item": 8, "ease": 6, "trending": 5, "new_items": 5}
)


def world(lengths: list[int], n: int = 120) -> tuple[Candidates, Histories, Items]:
    items = make_items(n)
    histories = make_histories(items, lengths)
    return Retriever(mean_tower, items, CONFIG).retrieve(histories), histories, items


def column(features: np.ndarray, name: str) -> np.ndarray:
    return features[..., names("candidate").index(name)]


def transitions_by_hand(row: int, history: list[int], items: Items, weights: list[float]) -> float:
    total = 0.0
    for age, latest in enumerate(reversed(history)):
        for neighbour, score in zip(
            items.neighbours[latest], items.neighbour_scores[latest], strict=True
        ):
            if neighbour == row and age < len(weights):
                total += weights[age] * float(score)
    return float(np.log1p(10 * total))


def test_transitions_equal_a_plain_loop():
    candidates, histories, items = world([0, 1, 7, 25])
    features = candidate_features(candidates, histories, items)
    wanted = {
        "cand_transition_1": [1.0],
        "cand_transition_5": [0.7**age for age in range(5)],
        "cand_transition_20": [0.9**age for age in range(20)],
    }
    for b, length in enumerate(histories.lengths.tolist()):
        history = histories.rows[b, :length].tolist()
        for c, row in enumerate(candidates.rows[b].tolist()):
            for name, weights in wanted.items():
                by_hand = transitions_by_hand(row, history, items, weights) if row >= 0 else 0.0
                assert column(features, name)[b, c] == pytest.approx(by_hand, rel=1e-5, abs=1e-6)
    assert column(features, "cand_transition_20")[3].max() > 0


def test_covisits_are_looked_up_for_the_latest_item():
    candidates, histories, items = world([0, 1, 7, 25])
    features = column(candidate_features(candidates, histories, items), "cand_covisits")
    for b, length in enumerate(histories.lengths.tolist()):
        pairs = {}
        if length:
            latest = histories.rows[b, length - 1]
            pairs = dict(zip(items.covisits[latest], items.covisit_pairs[latest], strict=True))
        wanted = [np.log1p(pairs.get(row, 0)) if row >= 0 else 0 for row in candidates.rows[b]]
        np.testing.assert_allclose(features[b], wanted, rtol=1e-6)
    assert features[1:].max() > 0
    # Lists as of each request take the place of those of the release.
    rows = candidates.rows[:, ::3].astype(np.int32)
    lists = Covisits(rows, np.full(rows.shape, 3, np.float32))
    given = column(candidate_features(candidates, histories, items, lists), "cand_covisits")
    assert given[0].max() == 0
    assert np.array_equal(given[1:, ::3] > 0, rows[1:] >= 0)
    assert given[1:].sum() == pytest.approx((rows[1:] >= 0).sum() * np.log(4))


def test_ease_adds_up_the_history_and_its_latest_items():
    candidates, histories, items = world([0, 1, 7, 25])
    features = candidate_features(candidates, histories, items)
    for b, length in enumerate(histories.lengths.tolist()):
        history = histories.rows[b, :length]
        for name, held in (("cand_ease", history), ("cand_ease_20", history[-20:])):
            spoken = items.ease[held].ravel().tolist()
            weights = items.ease_weights[held].ravel().tolist()
            for c, row in enumerate(candidates.rows[b].tolist()):
                total = sum(w for other, w in zip(spoken, weights, strict=True) if other == row)
                wanted = np.log1p(10 * total) if row >= 0 else 0
                assert column(features, name)[b, c] == pytest.approx(wanted, rel=1e-5)
    assert column(features, "cand_ease")[3].sum() > column(features, "cand_ease_20")[3].sum() > 0


def test_similarities_and_categories_by_hand():
    candidates, histories, items = world([3])
    features = candidate_features(candidates, histories, items)
    unit = items.vectors / np.linalg.norm(items.vectors, axis=1, keepdims=True)
    history = histories.rows[0]
    cosine = unit[candidates.rows[0]] @ unit[history].T
    for name, wanted in {
        "cand_similarity_1": cosine[:, -1],
        "cand_similarity_max": cosine.max(axis=1),
        "cand_similarity_mean": cosine.mean(axis=1),
    }.items():
        np.testing.assert_allclose(column(features, name)[0], wanted, atol=1e-5)
    profile = items.categories[history].astype(float).sum(axis=0)
    own = items.categories[candidates.rows[0]].astype(float)
    wanted = own @ profile / np.linalg.norm(profile) / np.linalg.norm(own, axis=1)
    np.testing.assert_allclose(column(features, "cand_category_overlap")[0], wanted, atol=1e-5)


def test_scores_and_ranks_come_from_the_candidates():
    candidates, histories, items = world([4, 2])
    features = candidate_features(candidates, histories, items)
    ann = candidates.ann_scores
    np.testing.assert_allclose(column(features, "cand_ann_score"), ann)
    np.testing.assert_allclose(column(features, "cand_ann_gap"), ann - ann.max(1)[:, None])
    ranks = candidates.source_ranks[..., candidates.sources.index("trending")]
    wanted = np.log1p(np.where(ranks < 0, 1000, ranks))
    np.testing.assert_allclose(column(features, "cand_trending_log_rank"), wanted, rtol=1e-6)
    np.testing.assert_allclose(
        column(features, "cand_coarse_log_rank")[0], np.log1p(np.arange(30)), rtol=1e-6
    )
    new = candidates.source_ranks[..., candidates.sources.index("new_items")] >= 0
    assert (column(features, "cand_is_new") == new).all()


def test_a_request_does_not_depend_on_its_batch():
    together = candidate_features(*world([0, 1, 7, 25]))
    candidates, histories, items = world([0, 1, 7, 25])
    for b in range(4):
        one = slice(b, b + 1)
        alone = Candidates(
            candidates.rows[one],
            candidates.vectors[one],
            candidates.coarse_scores[one],
            candidates.ann_scores[one],
            candidates.source_scores[one],
            candidates.source_ranks[one],
            candidates.user_vectors[one],
            candidates.sources,
            candidates.dropped[one],
        )
        history = Histories(
            histories.rows[one],
            histories.values[one],
            histories.times[one],
            histories.lengths[one],
            histories.now[one],
        )
        np.testing.assert_allclose(
            candidate_features(alone, history, items)[0], together[b], rtol=1e-5, atol=1e-6
        )


def test_padding_is_zero_and_all_is_finite():
    candidates, histories, items = world([0, 5], n=12)
    candidates.rows[1, 4:] = -1
    candidates.ann_scores[1, 4:] = -np.inf
    features = candidate_features(candidates, histories, items)
    assert np.isfinite(features).all()
    assert (features[1, 4:] == 0).all()


def test_a_source_that_is_not_there_reads_as_missing():
    candidates, histories, items = world([5])
    candidates.sources = ("a", "b", "c", "d")
    features = candidate_features(candidates, histories, items)
    assert (column(features, "cand_ann_log_rank") == np.float32(np.log1p(1000))).all()
    assert (column(features, "cand_item_to_item_score") == 0).all()


def test_ranker_inputs_have_the_shapes_that_they_promise():
    candidates, histories, items = world([0, RANKER_EVENTS + 9, 3])
    B, C = candidates.rows.shape
    candidates.rows[0, 9:] = -1
    rng = np.random.default_rng(0)
    users = rng.random((B, len(names("user"))), np.float32)
    features = rng.random((B, C, len(names("item"))), np.float32)
    cross = rng.random((B, C, len(names("cross"))), np.float32)
    feeds = ranker_inputs(candidates, histories, users, features, cross, items)
    assert {name: (array.shape, str(array.dtype)) for name, array in feeds.items()} == {
        "user": ((B, len(names("user"))), "float32"),
        "item": ((B, C, len(names("item"))), "float32"),
        "pair": ((B, C, len(names("cross") + names("candidate"))), "float32"),
        "candidates": ((B, C, 8), "float32"),
        "history": ((B, RANKER_EVENTS, 8), "float32"),
        "values": ((B, RANKER_EVENTS), "float32"),
        "log_gaps": ((B, RANKER_EVENTS), "float32"),
        "lengths": ((B,), "int64"),
        "mask": ((B, C), "float32"),
    }
    assert feeds["mask"][0].sum() == 9
    assert (feeds["item"][0, 9:] == 0).all()
    assert feeds["lengths"].tolist() == [0, RANKER_EVENTS, 3]
    last = histories.rows[1, histories.lengths[1] - 1]
    np.testing.assert_array_equal(feeds["history"][1, -1], items.vectors[last])


def test_empty_histories_and_no_candidates():
    items = make_items(5)
    nothing = Histories(
        np.full((1, 1), -1),
        np.zeros((1, 1), np.float32),
        np.zeros((1, 1)),
        np.zeros(1, np.int64),
        np.zeros(1),
    )
    candidates = Candidates(
        np.empty((1, 0), np.int64),
        np.empty((1, 0, 8), np.float32),
        np.empty((1, 0), np.float32),
        np.empty((1, 0), np.float32),
        np.empty((1, 0, 1), np.float32),
        np.empty((1, 0, 1), np.int32),
        np.zeros((1, 8), np.float32),
        ("ann",),
        [{}],
    )
    feeds = ranker_inputs(
        candidates,
        nothing,
        np.zeros((1, 6), np.float32),
        np.zeros((1, 0, 8), np.float32),
        np.zeros((1, 0, 2), np.float32),
        items,
    )
    assert feeds["pair"].shape[:2] == (1, 0)
    assert feeds["history"].shape == (1, 1, 8)
