"""All stages together, on small real models: filters, notes, counts, timing, live changes."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_catalogue import change
from worlds import NOW, make_pipeline, make_state, make_table

from features.errors import InputError
from features.spec import names
from features.states import UserState, cold_state
from ranking.pipeline import Pipeline
from ranking.types import DROP_REASONS, HistoryEvent, Query, Ranking

TABLE = make_table(200, unavailable=0.1)
STAGES = ["retrieve", "features", "rank", "rerank"]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return make_pipeline(TABLE, tmp_path_factory.mktemp("models"))


def ids(ranking: Ranking) -> list[str]:
    return [item.item_id for item in ranking.items]


def codes(ranking: Ranking) -> list[str]:
    return [note.code for note in ranking.notes]


def ask(pipeline: Pipeline, query: Query, state: UserState | None = None) -> Ranking:
    return pipeline.recommend([query], [state or cold_state(query.user_id, NOW)])[0]


def check_counts(ranking: Ranking, query: Query) -> None:
    counts = ranking.counts
    assert counts["retrieved"] == counts["filtered"] + counts["ranked"]
    assert counts["filtered"] == sum(counts[reason] for reason in DROP_REASONS)
    assert counts["ranked"] + counts["pinned"] == sum(
        counts[part] for part in ("returned", "capped", "cut")
    )
    assert counts["returned"] == len(ranking.items) <= query.count
    assert ("short" in codes(ranking)) == (len(ranking.items) < query.count)


def test_a_known_user_gets_a_full_list_of_unseen_available_items(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 30)
    ranking = ask(pipeline, Query("u", 20, NOW), state)
    rows = [item.row for item in ranking.items]
    assert len(set(rows)) == 20
    assert not set(rows) & set(TABLE.keys.searchsorted(state.seen_keys))
    assert TABLE.items.available[rows].all()
    assert ids(ranking) == [f"i{row}" for row in rows]
    scores = [item.score for item in ranking.items]
    assert scores == sorted(scores, reverse=True)
    assert all(item.sources for item in ranking.items)
    assert ranking.release == "tiny"
    assert codes(ranking) == []
    check_counts(ranking, Query("u", 20, NOW))


def test_times_of_the_stages_sum_to_the_whole(pipeline: Pipeline) -> None:
    queries = [Query("u", 20, NOW, diversity=0.3)] * 8
    states = [make_state(TABLE, 30, seed) for seed in range(8)]
    shares = []
    for _ in range(20):
        start = time.perf_counter()
        rankings = pipeline.recommend(queries, states)
        whole = (time.perf_counter() - start) * 1e3
        assert list(rankings[0].timing_ms) == STAGES
        shares.append(sum(rankings[0].timing_ms.values()) / whole)
    assert max(shares) <= 1.0
    assert np.median(shares) > 0.95


def test_an_unknown_user_gets_trending_items(pipeline: Pipeline) -> None:
    ranking = ask(pipeline, Query("nobody", 10, NOW))
    assert codes(ranking) == ["cold_start"]
    trending = [row for row in TABLE.items.trending if TABLE.items.available[row]]
    assert {item.row for item in ranking.items} <= set(trending[:30])
    assert ranking.items[0].row == trending[0]
    check_counts(ranking, Query("nobody", 10, NOW))


def test_a_history_in_the_request_replaces_the_stored_one(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 12, seed=5)
    events = tuple(
        HistoryEvent(f"i{key - 100}", float(value), float(when))
        for key, value, when in zip(state.item_keys, state.values, state.times, strict=True)
    )
    own = ask(pipeline, Query("anyone", 15, NOW, history=events), make_state(TABLE, 40, seed=6))
    assert codes(own) == []
    assert ids(own) == ids(ask(pipeline, Query("u", 15, NOW), state))
    assert not {item.row for item in own.items} & {key - 100 for key in state.item_keys}
    seen = ask(pipeline, Query("anyone", 200, NOW, history=events, exclude_seen=False))
    assert {item.row for item in seen.items} & {key - 100 for key in state.item_keys}


def test_features_of_an_own_history_are_those_of_sql() -> None:
    from ranking.requests import _user_features

    day = 86_400.0
    found = dict(
        zip(
            names("user"),
            _user_features(
                np.array([4, np.nan, 2], np.float32),
                np.array([NOW - 40 * day, NOW - 3 * day, NOW - day]),
                NOW,
            ),
            strict=True,
        )
    )
    assert found["user_events"] == 3
    assert [found[f"user_events_{days}d"] for days in (1, 7, 30, 90)] == [1, 2, 2, 3]
    assert found["user_active_days"] == 3
    assert found["user_session_gap_days"] == 39 / 2
    assert found["user_value_mean"] == 3
    assert found["user_value_std"] == 1
    assert found["user_tenure_days"] == 40
    assert found["user_recency_days"] == 1


def test_context_items_act_as_the_latest_events_and_are_not_returned(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 5)
    plain = ask(pipeline, Query("u", 50, NOW), state)
    target = plain.items[0].item_id
    shown = ask(pipeline, Query("u", 50, NOW, context_item_ids=(target,)), state)
    assert target not in ids(shown)
    assert ids(shown)[:10] != ids(plain)[1:11]
    cold = ask(pipeline, Query("nobody", 10, NOW, context_item_ids=("i3", "no such")))
    assert codes(cold) == ["unknown_item"]
    assert "'no such'" in cold.notes[0].detail


def test_excluded_items_seen_items_and_categories(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 20)
    first = ask(pipeline, Query("u", 5, NOW), state)
    excluded = frozenset(ids(first)) | {"unknown"}
    second = ask(pipeline, Query("u", 5, NOW, exclude_item_ids=excluded), state)
    assert not set(ids(second)) & excluded
    assert second.counts["excluded"] == 5
    only = ask(pipeline, Query("u", 40, NOW, categories=frozenset({"c2"})), state)
    assert TABLE.items.categories[[item.row for item in only.items], 2].all()
    none = ask(pipeline, Query("u", 5, NOW, categories=frozenset({"nothing"})), state)
    assert codes(none) == ["unknown_category", "short"]
    assert none.items == []


def test_pins_come_first_whatever_the_ranker_says(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 20)
    last = ask(pipeline, Query("u", 200, NOW), state).items[-1].item_id
    seen = f"i{state.item_keys[0] - 100}"
    unavailable = f"i{np.flatnonzero(~TABLE.items.available)[0]}"
    available = bool(TABLE.items.available[state.item_keys[0] - 100])
    query = Query("u", 10, NOW, pins=(last, seen, unavailable, "no such", last))
    ranking = ask(pipeline, query, state)
    expected = [last, seen] if available else [last]
    assert ids(ranking)[: len(expected)] == expected
    assert codes(ranking).count("unknown_item") == 1
    assert codes(ranking).count("pin_left_out") == (1 if available else 2)
    check_counts(ranking, query)
    refused = ask(pipeline, replace(query, exclude_item_ids=frozenset({last})), state)
    assert last not in ids(refused)


def test_boosts_raise_a_category(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 20)
    plain = ask(pipeline, Query("u", 20, NOW), state)
    raised = ask(pipeline, Query("u", 20, NOW, boosts=(("c1", 50.0), ("none", 9.0))), state)

    def share(ranking: Ranking) -> float:
        return float(TABLE.items.categories[[item.row for item in ranking.items], 1].mean())

    assert share(raised) >= share(plain)
    assert share(raised) == 1.0


def test_category_cap_and_diversity(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 20)
    query = Query("u", 12, NOW, category_cap=2, diversity=0.4)
    ranking = ask(pipeline, query, state)
    first = TABLE.items.categories[[item.row for item in ranking.items]].argmax(axis=1)
    assert np.bincount(first).max() <= 2
    check_counts(ranking, query)
    assert "short" in codes(ranking)

    def spread(diversity: float) -> float:
        found = ask(pipeline, Query("u", 12, NOW, diversity=diversity), state)
        vectors = TABLE.items.vectors[[item.row for item in found.items]]
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return float((unit @ unit.T).mean())

    assert spread(1.0) < spread(0.0)


def test_a_count_beyond_the_catalogue_is_short_and_says_why(pipeline: Pipeline) -> None:
    state = make_state(TABLE, 20)
    ranking = ask(pipeline, Query("u", 1000, NOW), state)
    eligible = TABLE.items.available.copy()
    eligible[state.item_keys - 100] = False
    assert len(ranking.items) == eligible.sum()
    assert codes(ranking) == ["short"]
    assert "catalogue has 200" in ranking.notes[0].detail
    assert "seen" in ranking.notes[0].detail
    check_counts(ranking, Query("u", 1000, NOW))


def test_an_empty_catalogue_is_short_and_no_error(tmp_path: Path) -> None:
    pipeline = make_pipeline(make_table(0), tmp_path)
    ranking = ask(pipeline, Query("u", 5, NOW, context_item_ids=("i1",)))
    assert ranking.items == []
    assert set(codes(ranking)) == {"unknown_item", "cold_start", "short"}
    pipeline.catalogue.apply(change([5, 6, 7]))
    assert len(ask(pipeline, Query("u", 5, NOW)).items) == 3


def test_live_changes_show_in_the_next_answer(tmp_path: Path) -> None:
    pipeline = make_pipeline(TABLE, tmp_path)
    state = make_state(TABLE, 20)
    top = ask(pipeline, Query("u", 5, NOW), state).items[0]
    pipeline.catalogue.apply(change([100 + top.row], available=False))
    assert top.item_id not in ids(ask(pipeline, Query("u", 300, NOW), state))
    pipeline.catalogue.apply(change([9000]))
    assert "i9000" in ids(ask(pipeline, Query("u", 300, NOW), state))
    # An event on the new item is part of the history at once.
    then = replace(state, item_keys=np.append(state.item_keys, 9000))
    then = replace(then, values=np.append(state.values, 1).astype(np.float32))
    then = replace(
        then, times=np.append(state.times, NOW - 1), seen_keys=np.append(state.seen_keys, 9000)
    )
    after = ask(pipeline, Query("u", 300, NOW), then)
    assert "i9000" not in ids(after)
    assert ask(pipeline, Query("u", 20, NOW), then).items[0].score != pytest.approx(top.score)


def test_similar_items(pipeline: Pipeline) -> None:
    ranking = pipeline.similar("i7", 12, NOW)
    assert len(ranking.items) == 12
    assert "i7" not in ids(ranking)
    assert list(ranking.timing_ms) == ["retrieve", "rerank"]
    assert {hit.name for item in ranking.items for hit in item.sources} == {"ann", "item_to_item"}
    neighbours = set(TABLE.items.neighbours[7][TABLE.items.available[TABLE.items.neighbours[7]]])
    assert neighbours <= {item.row for item in ranking.items}
    everything = pipeline.similar("i7", 500, NOW)
    assert codes(everything) == ["short"]
    assert len(everything.items) == TABLE.items.available.sum() - TABLE.items.available[7]
    with pytest.raises(InputError, match="'nope' is not in the catalogue"):
        pipeline.similar("nope", 3, NOW)


def test_item_features_can_come_from_elsewhere(pipeline: Pipeline) -> None:
    asked: list[tuple[tuple[int, ...], float]] = []

    def as_of(items, rows, now):
        asked.append((rows.shape, float(now[0])))
        return np.zeros((*rows.shape, len(names("item"))), np.float32)

    other = pipeline.with_item_features(as_of)
    ask(other, Query("u", 3, NOW - 5), make_state(TABLE, 4))
    assert asked[0][1] == NOW - 5


def test_coarse_candidates_alone(pipeline: Pipeline) -> None:
    states = [make_state(TABLE, 10, seed) for seed in range(3)]
    candidates = pipeline.retrieve([Query("u", 5, NOW)] * 3, states, limit=25)
    assert candidates.rows.shape == (3, 25)
    assert pipeline.recommend([], []) == []


@st.composite
def requests(draw: st.DrawFn) -> tuple[Query, UserState]:
    some = st.integers(0, 210).map(lambda row: f"i{row}")
    known = draw(st.booleans())
    state = make_state(TABLE, draw(st.integers(0, 60)), draw(st.integers(0, 50)))
    query = Query(
        user_id="u",
        count=draw(st.sampled_from([1, 5, 20, 70, 300])),
        now=NOW,
        history=draw(
            st.none()
            | st.lists(some, max_size=4).map(
                lambda items: tuple(HistoryEvent(item) for item in items)
            )
        ),
        context_item_ids=tuple(draw(st.lists(some, max_size=2))),
        exclude_item_ids=draw(st.frozensets(some, max_size=20)),
        exclude_seen=draw(st.booleans()),
        categories=draw(st.frozensets(st.sampled_from(["c0", "c1", "c2", "c9"]), max_size=2)),
        diversity=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
        category_cap=draw(st.none() | st.integers(1, 8)),
        pins=tuple(draw(st.lists(some, max_size=3))),
        boosts=tuple(
            draw(
                st.lists(
                    st.tuples(st.sampled_from(["c0", "c9"]), st.sampled_from([0.5, 3.0])),
                    max_size=2,
                )
            )
        ),
    )
    return query, state if known else cold_state("u", NOW)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=st.lists(requests(), min_size=1, max_size=5))
def test_any_batch_adds_up_and_answers_each_as_if_alone(
    pipeline: Pipeline, batch: list[tuple[Query, UserState]]
) -> None:
    queries, states = [query for query, _ in batch], [state for _, state in batch]
    together = pipeline.recommend(queries, states)
    for query, state, ranking in zip(queries, states, together, strict=True):
        check_counts(ranking, query)
        rows = [item.row for item in ranking.items]
        assert len(set(rows)) == len(rows)
        assert TABLE.items.available[rows].all()
        pins = [pin for pin in query.pins if pin in ids(ranking)]
        assert not set(ids(ranking)) & (query.exclude_item_ids | set(query.context_item_ids))
        if query.categories:
            columns = [k for k in range(4) if f"c{k}" in query.categories]
            free = [row for row in rows if f"i{row}" not in pins]
            assert TABLE.items.categories[free][:, columns].any(axis=1).all()
        if query.exclude_seen and query.history is None:
            free = {row + 100 for row in rows if f"i{row}" not in pins}
            assert not free & set(state.seen_keys.tolist())
        alone = pipeline.recommend([query], [state])[0]
        assert [item.score for item in alone.items] == pytest.approx(
            [item.score for item in ranking.items], rel=1e-4, abs=1e-5
        )
        assert alone.counts == ranking.counts
        assert alone.notes == ranking.notes
