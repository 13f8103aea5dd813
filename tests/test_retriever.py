"""The coarse stage against brute force: nothing short, nothing ineligible, all counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import NOW, first, make_histories, make_items, mean_tower, rows_of

from features.errors import ConfigError, InputError
from ranking.retrieval.filters import Filters, eligible
from ranking.retrieval.index import IndexConfig
from ranking.retrieval.retriever import RetrievalConfig, Retriever
from ranking.types import DROP_REASONS, Candidates, Items, RowArray


def of_seen(seen: list[RowArray]) -> Filters:
    return replace(Filters.none(len(seen)), seen=seen)


def check_counts(candidates: Candidates, items: Items, filters: Filters, limit: int) -> None:
    now = np.full(len(candidates.rows), NOW)
    for b, rows in enumerate(candidates.rows):
        kept = rows[rows >= 0]
        mask = eligible(items, filters, now, b)
        assert len(kept) == min(limit, mask.sum())
        assert mask[kept].all()
        assert len(set(kept)) == len(kept)
        assert (rows[len(kept) :] == -1).all()
        scores = candidates.coarse_scores[b]
        assert (np.diff(scores[: len(kept)]) <= 0).all()
        assert np.isneginf(scores[len(kept) :]).all()
        assert tuple(candidates.dropped[b]) == DROP_REASONS
        assert all(count >= 0 for count in candidates.dropped[b].values())
        for reason, listed in (("seen", filters.seen[b]), ("excluded", filters.excluded[b])):
            assert candidates.dropped[b][reason] <= len(set(listed))
        has_source = (candidates.source_ranks[b] >= 0).any(axis=1)
        assert (has_source == (rows >= 0)).all()
        assert (np.isfinite(candidates.source_scores[b]) == (candidates.source_ranks[b] >= 0)).all()


@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(1, 120),
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    limit=st.integers(1, 60),
    unavailable=st.floats(0, 1),
    kind=st.sampled_from(["flat", "hnsw", "ivf"]),
    seed=st.integers(0, 2**16),
)
def test_no_list_is_short_or_holds_what_it_must_not(
    n: int, lengths: list[int], limit: int, unavailable: float, kind: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    items = make_items(n, seed=seed, unavailable=unavailable)
    histories = make_histories(items, [min(length, n) for length in lengths], seed)
    B = len(lengths)
    filters = Filters(
        excluded=[rng.choice(n, rng.integers(0, n + 1), replace=False) for _ in range(B)],
        seen=rows_of(histories),
        categories=[
            None if rng.random() < 0.5 else rng.choice(4, rng.integers(0, 3), replace=False)
            for _ in range(B)
        ],
    )
    config = RetrievalConfig(
        index=IndexConfig.model_validate({"kind": kind, "exact_below": int(rng.integers(0, 99))})
    )
    candidates = Retriever(mean_tower, items, config).retrieve(histories, filters, limit)
    check_counts(candidates, items, filters, limit)


def test_order_is_the_weighted_reciprocal_rank_fusion_of_the_eligible_ranks() -> None:
    items = make_items(200, unavailable=0.2)
    histories = make_histories(items, [12])
    filters = of_seen(rows_of(histories))
    config = RetrievalConfig(quotas={"item_to_item": 30, "ease": 9, "trending": 7, "new_items": 5})
    candidates = Retriever(mean_tower, items, config).retrieve(histories, filters, 50)
    weights = np.array([config.weights[name] for name in candidates.sources])
    ranks = candidates.source_ranks[0]
    by_hand = np.where(ranks >= 0, weights / (config.rank_constant + ranks + 1), 0).sum(axis=1)
    assert candidates.coarse_scores[0] == pytest.approx(by_hand, rel=1e-5)
    assert candidates.sources == ("ann", "item_to_item", "ease", "trending", "new_items")
    assert (ranks.max(axis=0)[1:] < [30, 9, 7, 5]).all()
    mask = eligible(items, filters, histories.now, 0)
    inner = items.vectors @ candidates.user_vectors[0]
    best = np.flatnonzero(mask)[np.argsort(-inner[mask], kind="stable")][:10]
    top = candidates.rows[0][np.argsort(np.where(ranks[:, 0] < 0, 999, ranks[:, 0]))][:10]
    assert (top == best).all()
    assert candidates.ann_scores[0] == pytest.approx(inner[candidates.rows[0]], rel=1e-4)
    assert (candidates.vectors[0] == items.vectors[candidates.rows[0]]).all()


def test_a_batch_gives_what_each_request_gives_alone() -> None:
    items = make_items(300)
    histories = make_histories(items, [0, 3, 50, 1])
    filters = of_seen(rows_of(histories))
    retriever = Retriever(mean_tower, items)
    together = retriever.retrieve(histories, filters, 40)
    for b in range(4):
        alone = make_histories(items, [0, 3, 50, 1])
        for name in ("rows", "values", "times", "lengths", "now"):
            setattr(alone, name, getattr(alone, name)[b : b + 1])
        one = retriever.retrieve(alone, of_seen([filters.seen[b]]), 40)
        kept = one.rows[0] >= 0
        assert (one.rows[0] == together.rows[b][: len(kept)]).all()
        assert one.coarse_scores[0] == pytest.approx(together.coarse_scores[b])


def test_a_cold_start_is_led_by_trending_items() -> None:
    items = make_items(100, unavailable=0.0)
    candidates = Retriever(mean_tower, items).retrieve(make_histories(items, [0]), limit=80)
    trending = items.trending
    assert set(candidates.rows[0][: len(trending)]) >= set(trending[:30])
    in_trending = np.isin(candidates.rows[0], trending)
    assert len(candidates.rows[0]) == 80
    # What trending does not hold comes after all of it, new items excepted.
    only_ann = (candidates.source_ranks[0, :, 1:] < 0).all(axis=1)
    assert not only_ann[: in_trending.sum()].any()


def test_an_item_of_the_future_is_unavailable_until_then() -> None:
    items = make_items(50, unavailable=0.0)
    items.created[7] = NOW + 60
    histories = make_histories(items, [4, 4])
    histories.now[1] = NOW + 61
    candidates = Retriever(mean_tower, items).retrieve(histories, limit=50)
    assert 7 not in candidates.rows[0]
    assert 7 in candidates.rows[1]
    assert candidates.dropped[0]["unavailable"] == 1


def test_new_rows_of_the_catalogue_are_found_at_once() -> None:
    every = make_items(60, unavailable=0.0)
    old = first(every, 50)
    retriever = Retriever(mean_tower, old)
    histories = make_histories(old, [5])
    assert (retriever.retrieve(histories, limit=60).rows < 50).all()
    now = retriever.retrieve(histories, limit=60, items=every)
    assert set(now.rows[0]) == set(range(60))


def test_an_empty_catalogue_gives_empty_lists() -> None:
    items = make_items(0)
    candidates = Retriever(mean_tower, items).retrieve(make_histories(items, [0, 0]))
    assert candidates.rows.shape == (2, 0)
    assert candidates.dropped == [dict.fromkeys(DROP_REASONS, 0)] * 2


def test_a_user_vector_that_is_not_finite_still_gives_a_full_list() -> None:
    items = make_items(80, unavailable=0.0)
    retriever = Retriever(lambda h, v: np.full((len(h.lengths), 8), np.nan, np.float32), items)
    assert (retriever.retrieve(make_histories(items, [3]), limit=70).rows >= 0).sum() == 70


def test_similar_items_are_ordered_by_cosine_and_by_who_follows() -> None:
    items = make_items(120, unavailable=0.0)
    candidates = Retriever(mean_tower, items).similar(9, 20, NOW)
    assert 9 not in candidates.rows[0]
    unit = items.vectors / np.linalg.norm(items.vectors, axis=1, keepdims=True)
    cosine = unit @ unit[9]
    by_ann = candidates.source_ranks[0, :, 0]
    rows = candidates.rows[0][np.argsort(np.where(by_ann < 0, 999, by_ann))][:5]
    assert rows.tolist() == [row for row in np.argsort(-cosine).tolist() if row != 9][:5]
    assert set(items.neighbours[9]) <= set(candidates.rows[0])
    assert candidates.dropped[0]["excluded"] == 1


def test_more_candidates_than_can_be_told_apart_are_refused() -> None:
    items = make_items(5)
    with pytest.raises(InputError, match="at most 100000"):
        Retriever(mean_tower, items).retrieve(make_histories(items, [1]), limit=100_001)


def test_quotas_and_weights_must_name_the_sources() -> None:
    with pytest.raises(ConfigError, match=r"retrieval.quotas must name exactly .*trending"):
        Retriever(mean_tower, make_items(5), RetrievalConfig(quotas={"item_to_item": 3}))
    with pytest.raises(ConfigError, match=r"retrieval.weights must name exactly"):
        Retriever(mean_tower, make_items(5), RetrievalConfig(weights={"ann": 1}))
