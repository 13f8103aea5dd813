import numpy as np
import pytest
from evaluation_worlds import START, add, fill, make_pipeline, random_events

from features.errors import InputError
from features.store import read_interactions, states_as_of
from ranking.evaluation import report
from ranking.evaluation.measurement import EvaluationConfig, measure
from ranking.evaluation.replay import as_of_features, replay
from ranking.evaluation.result import EvaluationResult
from ranking.protocols import leave_last_out, time_split

QUICK = EvaluationConfig(resamples=50, latency_requests=5, examples=2)
BASELINES = {"popularity", "popularity_recent", "item_to_item", "ease", "ials"}
MODELS = {"fine", "coarse", "ann"} | BASELINES


def replayed(connection, pipeline, split):
    states = states_as_of(
        connection, split.user_keys, split.as_of, 200, before_interaction_ids=split.before_ids
    )
    catalogue = pipeline.catalogue
    as_of = pipeline.with_item_features(as_of_features(connection, catalogue))
    return replay(as_of, states, catalogue.rows_of_keys(split.relevant), batch=5)


def evaluated(connection, split=leave_last_out, pipeline=None, config=QUICK):
    interactions = read_interactions(connection)
    pipeline = pipeline or make_pipeline(connection)
    return measure(connection, pipeline, interactions, split(interactions), config).result


def test_a_whole_evaluation_and_its_report(connection):
    fill(connection, random_events(25, 40), 40)
    steps = []
    interactions = read_interactions(connection)
    result = measure(
        connection,
        make_pipeline(connection),
        interactions,
        leave_last_out(interactions),
        QUICK,
        lambda step, done, total: steps.append(step),
    ).result
    assert set(result.models) == MODELS
    assert (result.users, result.items, result.test_users) == (25, 40, 25)
    assert result.training_events == result.interactions - 25
    assert result.ann_recall_at_200 == 1.0
    for name, figures in result.models.items():
        assert figures.metrics["recall_at_500"].mean == 1.0, name
        assert result.ndcg_at_10[name] == figures.metrics["ndcg_at_10"].mean
    assert list(result.timing_ms) == ["user_state", "retrieve", "features", "rank", "rerank"]
    assert 0 < result.timing_ms["retrieve"].p50 <= result.total_ms.p99
    assert len(result.examples) == 2
    assert result.examples[0].recommended[0].title.startswith("Film ")
    assert set(steps) == {"baselines", "rank held-out events", "time single requests"}
    again = EvaluationResult.model_validate_json(result.model_dump_json())
    assert "test-release" in report.render(again)


def test_the_same_seed_gives_the_same_figures(connection):
    fill(connection, random_events(12, 20), 20)
    first, second = evaluated(connection), evaluated(connection)
    varying = {"created", "seconds", "timing_ms", "total_ms"}
    assert first.model_dump_json(exclude=varying) == second.model_dump_json(exclude=varying)


def test_fine_ranks_by_what_was_known_at_each_moment(connection):
    """The ranker of the test world is popularity as of the request: computed here by hand."""
    fill(connection, random_events(15, 25), 25)
    interactions = read_interactions(connection)
    split = leave_last_out(interactions)
    pipeline = make_pipeline(connection)
    lists = replayed(connection, pipeline, split).lists["fine"]
    rows = pipeline.catalogue.rows_of_keys(interactions.item_keys)
    for user, moment in enumerate(split.as_of):
        before = rows[interactions.times < moment]
        counts = np.bincount(before, minlength=25)
        seen = rows[split.starts[user] : split.stops[user]]
        listed = lists[user][lists[user] >= 0]
        assert sorted(listed) == sorted(set(range(25)) - set(seen.tolist()))
        assert (np.diff(counts[listed]) <= 0).all()


def test_what_happens_later_changes_no_list(connection):
    events = random_events(10, 20)
    fill(connection, events, 20)
    pipeline = make_pipeline(connection)
    split = leave_last_out(read_interactions(connection))
    before = replayed(connection, pipeline, split)
    # Other users do much more, after every test event.
    with connection.transaction():
        add(connection, [("late", f"i{n % 20}", 200_000.0 + n) for n in range(40)])
    after = replayed(connection, pipeline, split)
    for name, lists in before.lists.items():
        np.testing.assert_array_equal(lists, after.lists[name])


def test_time_split_measures_all_items_of_the_window(connection):
    fill(connection, random_events(30, 25), 25)
    result = evaluated(connection, lambda data: time_split(data, 0.3))
    assert result.protocol == "time-split"
    assert result.cut is not None
    assert result.cut > START
    assert result.test_events >= result.test_users > 0
    assert result.models["fine"].metrics["recall_at_500"].mean == 1.0


def test_one_user_and_a_catalogue_smaller_than_any_list(connection):
    fill(connection, [("only", "i0", 1.0), ("only", "i1", 2.0), ("only", "i2", 3.0)], 4)
    result = evaluated(connection)
    assert result.test_users == 1
    # Two items are left: the test item, and one that nobody ever touched.
    assert result.models["popularity"].metrics["hr_at_10"].mean == 1.0
    assert result.models["fine"].metrics["hr_at_10"].mean == 1.0
    assert "only" in report.render(result)


def test_users_with_one_event_are_counted_and_left_out(connection):
    fill(connection, [("a", "i0", 1.0), ("a", "i1", 2.0), ("b", "i0", 3.0)], 3)
    result = evaluated(connection)
    assert result.test_users == 1
    assert result.skipped == {"single_event": 1, "repeated": 0, "not_drawn": 0}


def test_nobody_to_test_is_said_with_the_next_step(connection):
    fill(connection, [("a", "i0", 1.0), ("b", "i0", 2.0)], 3)
    with pytest.raises(InputError, match="leave-last-out on 2 events: no user to test"):
        evaluated(connection)


def test_a_test_item_that_the_release_does_not_have_is_a_miss(connection):
    fill(connection, [("a", "i0", 1.0), ("a", "i4", 2.0), ("b", "i1", 1.0), ("b", "i2", 2.0)], 5)
    result = evaluated(connection, pipeline=make_pipeline(connection, known=4))
    assert result.test_users == 2
    for figures in result.models.values():
        assert figures.metrics["recall_at_500"].mean == 0.5
    titles = {example.user_id: example.held_out for example in result.examples}
    assert titles["a"] == ["(an item that this release does not have)"]


def test_more_users_than_wanted_are_drawn_from(connection):
    fill(connection, random_events(12, 20), 20)
    result = evaluated(connection, config=QUICK.model_copy(update={"most_users": 5}))
    assert result.test_users == 5
    assert result.skipped["not_drawn"] == 7


def test_without_timed_requests_there_are_no_timings(connection):
    fill(connection, random_events(6, 10), 10)
    result = evaluated(connection, config=QUICK.model_copy(update={"latency_requests": 0}))
    assert result.timing_ms == {}
    assert np.isnan(EvaluationResult.model_validate_json(result.model_dump_json()).total_ms.p50)
    assert "n/a ms" in report.render(result)
