"""Features beyond their maximum age take their defaults; refreshed ones take over at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worlds import DAY, NOW, make_pipeline, make_state, make_table

from features.encode import encode_items
from features.spec import names
from features.states import ItemFeatures
from ranking.catalogue import ItemTable, LiveCatalogue
from ranking.freshness import MaxAges, sampled_positions
from ranking.pipeline import Pipeline
from ranking.types import Query, Ranking

WIDTH = len(names("item"))
COVISITS = len(names("cross")) + names("candidate").index("cand_covisits")
NOTHING = encode_items(np.full((1, WIDTH), np.nan, np.float32))[0]


class Reading:
    """A ranker that reads only what can expire: all item features, and co-visits a thousandfold."""

    def score(self, inputs):
        assert inputs["mask"].min() == 1
        return inputs["item"].sum(axis=2) + 1000 * inputs["pair"][..., COVISITS]


def build(table: ItemTable, directory: Path, limits: MaxAges | None) -> Pipeline:
    whole = make_pipeline(table, directory)

    def inputs(candidates, *rest):
        found = whole._build_inputs(candidates, *rest)
        # As if each candidate had been visited together with the last item of the history.
        found["pair"][..., COVISITS] = 1 + candidates.rows
        return found

    return Pipeline("tiny", whole.catalogue, whole.retriever, Reading(), inputs, max_ages=limits)


@pytest.fixture
def table() -> ItemTable:
    """Items with random features of a refresh three days ago, of a release five days ago."""
    table = make_table(60, unavailable=0.0)
    raw = np.random.default_rng(7).uniform(0, 9, (60, WIDTH)).astype(np.float32)
    items = replace(table.items, features=encode_items(raw), features_as_of=NOW - 3 * DAY)
    return replace(table, items=items, features_as_of=NOW - 5 * DAY)


def ask(pipeline: Pipeline, table: ItemTable, *moments: float, **fields: object) -> list[Ranking]:
    queries = [Query(f"u{n}", 30, now, **fields) for n, now in enumerate(moments)]
    return pipeline.recommend(queries, [make_state(table, 5, n) for n in range(len(moments))])


def expected(table: ItemTable, ranking: Ranking, item: bool, candidate: bool) -> list[float]:
    """Return the scores that the answer must have, if these groups are good or not."""
    rows = np.array([found.row for found in ranking.items])
    features = table.items.features[rows] if item else np.tile(NOTHING, (len(rows), 1))
    covisits = 1 + rows if candidate else np.zeros(len(rows))
    return list(features.sum(axis=1) + 1000 * covisits)


@pytest.mark.parametrize(
    ("limits", "item", "candidate"),
    [
        (None, True, True),
        (MaxAges(3 * DAY, 5 * DAY), True, True),
        (MaxAges(3 * DAY - 1, 5 * DAY), False, True),
        (MaxAges(3 * DAY, 5 * DAY - 1), True, False),
        (MaxAges(1.0, 1.0), False, False),
    ],
)
def test_a_group_beyond_its_limit_is_ranked_with_its_defaults(
    table, tmp_path, limits, item, candidate
):
    (ranking,) = ask(build(table, tmp_path, limits), table, NOW)
    scores = [found.score for found in ranking.items]
    np.testing.assert_allclose(scores, expected(table, ranking, item, candidate), rtol=1e-5)
    good = {"user": True, "item": item, "cross": True, "candidate": candidate}
    assert {name: not fresh.expired for name, fresh in ranking.freshness.items()} == good
    as_of = {"user": NOW, "item": NOW - 3 * DAY, "cross": NOW, "candidate": NOW - 5 * DAY}
    assert {name: fresh.as_of for name, fresh in ranking.freshness.items()} == as_of
    assert ranking.expired == [name for name, is_good in good.items() if not is_good]
    notes = [note for note in ranking.notes if note.code == "features_expired"]
    assert [note.detail.split()[0] for note in notes] == ranking.expired


def test_what_a_request_gets_does_not_depend_on_the_age_of_its_neighbours(table, tmp_path):
    pipeline = build(table, tmp_path, MaxAges(3 * DAY, 5 * DAY))
    old, new = ask(pipeline, table, NOW + 60, NOW - 60)
    assert old.expired == ["item", "candidate"]
    assert new.expired == []
    for ranking, is_good in ((old, False), (new, True)):
        scores = [found.score for found in ranking.items]
        np.testing.assert_allclose(scores, expected(table, ranking, is_good, is_good), rtol=1e-5)


def test_refreshed_features_take_over_and_are_young_again(table, tmp_path):
    pipeline = build(table, tmp_path, MaxAges(DAY, 9 * DAY))
    assert ask(pipeline, table, NOW)[0].expired == ["item"]
    raw = np.random.default_rng(8).uniform(0, 9, (60, WIDTH)).astype(np.float32)
    raw[3] = np.nan
    keys = np.append(table.keys[::-1], 9999)  # in any order, with an item nobody knows
    fresh = ItemFeatures(keys, np.vstack([raw[::-1], raw[:1]]), NOW - 60, "1:1:")
    before = pipeline.catalogue.items
    pipeline.catalogue.take_features(fresh)
    assert before.features_as_of == NOW - 3 * DAY
    np.testing.assert_array_equal(pipeline.catalogue.items.features, encode_items(raw))
    np.testing.assert_array_equal(pipeline.catalogue.items.features[3], NOTHING)
    (ranking,) = ask(pipeline, table, NOW)
    assert (ranking.expired, ranking.freshness["item"].as_of) == ([], NOW - 60)
    assert pipeline.catalogue.items.raw_features is None


def test_an_item_that_the_refresh_did_not_have_takes_the_defaults(table):
    catalogue = LiveCatalogue(table)
    some = ItemFeatures(table.keys[:10], np.ones((10, WIDTH), np.float32), NOW, "")
    catalogue.take_features(some, keep_raw=True)
    ones = encode_items(np.ones((1, WIDTH), np.float32))[0]
    assert (catalogue.items.features[:10] == ones).all()
    assert (catalogue.items.features[10:] == NOTHING).all()
    assert np.isnan(catalogue.items.raw_features[10:]).all()


def test_a_sampled_answer_keeps_raw_features_of_what_it_returned_and_of_others(table, tmp_path):
    pipeline = build(table, tmp_path, MaxAges(DAY, 9 * DAY))
    raw = np.random.default_rng(9).uniform(0, 9, (60, WIDTH)).astype(np.float32)
    assert ask(pipeline, table, NOW, sampled=True)[0].served is None  # nothing raw is there
    pipeline.catalogue.take_features(ItemFeatures(table.keys, raw, NOW - 60, "7:9:"), True)
    assert ask(pipeline, table, NOW)[0].served is None
    assert ask(pipeline, table, NOW + 2 * DAY, sampled=True)[0].served is None  # expired
    (ranking,) = ask(pipeline, table, NOW, sampled=True)
    served = ranking.served
    rows = served.item_keys - 100
    assert rows[:30].tolist() == [item.row for item in ranking.items]
    assert 30 < len(rows) == len(set(rows)) <= 50
    np.testing.assert_array_equal(served.items, raw[rows])
    np.testing.assert_array_equal(served.user, make_state(table, 5, 0).features)
    assert (served.item_as_of, served.item_snapshot) == (NOW - 60, "7:9:")
    # c1 has 2 of 3 category events, c3 one; values 8 and 3.
    share, value = (
        names("cross").index("cross_category_share"),
        names("cross").index("cross_category_value"),
    )
    for row, cross in zip(rows, served.cross, strict=True):
        held = table.items.categories[row].astype(bool)
        events, sums = np.array([0, 2, 0, 1])[held].sum(), np.array([0, 8, 0, 3])[held].sum()
        assert cross[share] == pytest.approx(events / (3 * held.sum()))
        assert cross[value] == pytest.approx(sums / events if events else 0)


def test_positions_of_a_sample():
    rows = np.array([5, 3, 9, 1, -1, -1])
    assert sampled_positions(rows, [9, 5], 3) == [2, 0, 1]
    assert sampled_positions(rows, [9, 5], 1) == [2]
    assert sampled_positions(rows, [77], 9) == [0, 1, 2, 3]
