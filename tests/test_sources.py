"""Contract of every candidate source, and what each one is for."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import DAY, NOW, make_histories, make_items, mean_tower

from ranking.retrieval.index import build_index
from ranking.retrieval.merge import best, group
from ranking.retrieval.sources import (
    AnnSource,
    EaseSource,
    ItemToItemSource,
    NewItemsSource,
    Source,
    SourceBatch,
    TrendingSource,
)
from ranking.types import Items


def make_source(name: str, items: Items) -> Source:
    if name == "ann":
        return AnnSource(build_index(items.vectors))
    return {
        "item_to_item": ItemToItemSource,
        "ease": EaseSource,
        "trending": TrendingSource,
        "new_items": NewItemsSource,
    }[name]()


def make_batch(items: Items, lengths: list[int]) -> SourceBatch:
    histories = make_histories(items, lengths)
    return SourceBatch(histories, mean_tower(histories, items.vectors), items)


@pytest.fixture(params=["ann", "item_to_item", "ease", "trending", "new_items"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("n", [1, 3, 200])
@pytest.mark.parametrize("k", [1, 7, 500])
def test_contract(name: str, n: int, k: int) -> None:
    items = make_items(n)
    source = make_source(name, items)
    assert source.name == name
    lengths = [min(length, n) for length in (0, 1, 30)]
    rows, scores = source.retrieve(make_batch(items, lengths), k)
    assert rows.shape == scores.shape
    assert len(rows) == 3
    assert rows.shape[1] <= k or rows.shape[1] == k
    assert rows.dtype == np.int64
    assert scores.dtype == np.float32
    for some, values in zip(rows, scores, strict=True):
        found = some >= 0
        assert (np.isfinite(values) == found).all()
        assert (np.diff(found.astype(int)) <= 0).all()
        assert len(set(some[found])) == found.sum()
        assert (some < n).all()
        assert (np.diff(values[found]) <= 1e-6).all()


def test_a_batch_gives_what_each_user_gets_alone(name: str) -> None:
    items = make_items(150)
    source = make_source(name, items)
    rows, _ = source.retrieve(make_batch(items, [0, 2, 40]), 20)
    batch = make_batch(items, [0, 2, 40])
    for b in range(3):
        histories = make_histories(items, [0, 2, 40])
        for part in ("rows", "values", "times", "lengths", "now"):
            setattr(histories, part, getattr(histories, part)[b : b + 1])
        one = SourceBatch(histories, batch.user_vectors[b : b + 1], items)
        assert (source.retrieve(one, 20)[0][0] == rows[b]).all()


def test_item_to_item_adds_up_decayed_neighbour_scores() -> None:
    items = make_items(60, seed=3)
    batch = make_batch(items, [25])
    rows, scores = ItemToItemSource(latest=4, width=3, decay=0.5).retrieve(batch, 50)
    by_hand: dict[int, float] = {}
    for age, row in enumerate(batch.histories.rows[0, ::-1][:4]):
        for neighbour, score in zip(
            items.neighbours[row, :3], items.neighbour_scores[row, :3], strict=True
        ):
            by_hand[neighbour] = by_hand.get(neighbour, 0.0) + 0.5**age * float(score)
    found = rows[0][rows[0] >= 0]
    assert set(found) == set(by_hand)
    assert scores[0][: len(found)] == pytest.approx([by_hand[row] for row in found], rel=1e-5)


def test_ease_adds_up_the_weights_of_the_whole_history() -> None:
    items = make_items(60, seed=3)
    batch = make_batch(items, [25, 0])
    rows, scores = EaseSource().retrieve(batch, 50)
    by_hand: dict[int, float] = {}
    for row in batch.histories.rows[0, :25]:
        for other, weight in zip(items.ease[row], items.ease_weights[row], strict=True):
            by_hand[other] = by_hand.get(other, 0.0) + float(weight)
    assert set(rows[0][rows[0] >= 0]) == set(by_hand)
    assert scores[0, : len(by_hand)] == pytest.approx(sorted(by_hand.values(), reverse=True))
    assert (rows[1] == -1).all()


def test_item_to_item_of_an_empty_history_is_empty() -> None:
    rows, _ = ItemToItemSource().retrieve(make_batch(make_items(20), [0]), 5)
    assert (rows == -1).all()


def test_new_items_are_newest_first_within_their_days_and_never_of_the_future() -> None:
    items = make_items(6)
    items.created[:] = [NOW - DAY, NOW + 1, NOW - 40 * DAY, np.nan, NOW, NOW - 2 * DAY]
    rows, scores = NewItemsSource(days=4).retrieve(make_batch(items, [0]), 6)
    assert rows[0].tolist() == [4, 0, 5, -1, -1, -1]
    assert scores[0][:3] == pytest.approx([1, 0.75, 0.5])


def test_group_finds_distinct_rows_and_sums_over_them() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(-1, 9, (5, 40))
    values = rng.random((5, 40))
    groups = group(rows)
    sums = groups.sum(values)
    for b in range(5):
        distinct = sorted(set(rows[b]) - {-1})
        assert groups.rows[b][: len(distinct)].tolist() == distinct
        assert (groups.rows[b][len(distinct) :] == -1).all()
        for place, row in enumerate(distinct):
            assert sums[b, place] == pytest.approx(values[b][rows[b] == row].sum(), rel=1e-5)


def test_best_orders_by_score_and_then_by_place() -> None:
    scores = np.array([[0.5, 2.0, 0.0, 2.0, 1e-9]], np.float32)
    assert best(scores, 9).tolist() == [[1, 3, 0, 4, 2]]
    assert best(scores, 2).tolist() == [[1, 3]]
