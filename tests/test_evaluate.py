import json

import numpy as np
import pytest
from evaluation_worlds import add, fill, random_events
from tiny_runs import write_run

from features.errors import InputError, ReleaseError
from features.refresh import refresh
from features.store import read_catalogue, read_interactions
from ranking.evaluation.job import EvaluationConfig, evaluate, report_path, result_path
from ranking.evaluation.result import EvaluationResult
from ranking.protocols import time_cut
from ranking.release import ReleaseConfig, build_release, current_release, list_releases
from ranking.training_config import CoarseConfig, FineConfig, TrainingConfig

QUICK = EvaluationConfig(resamples=50, latency_requests=5, examples=2)


@pytest.fixture
def data(connection):
    fill(connection, random_events(25, 40), 40)
    connection.commit()
    refresh(connection)
    return connection


def released(data, home, **training):
    run = write_run(home / f"run-{len(list(home.iterdir()))}", read_catalogue(data), **training)
    return build_release(data, run, home, ReleaseConfig(min_recall=0.5, check_users=5))


def test_a_release_gets_its_json_file_and_its_report(data, tmp_path):
    release = released(data, tmp_path, holdout="last")
    result = evaluate(data, tmp_path, release, config=QUICK)
    assert result.release == release
    assert result.test_users == 25
    assert result.models["fine"].metrics["recall_at_500"].mean == 1.0
    text = result_path(tmp_path, release).read_text()
    assert EvaluationResult.model_validate_json(text) == result
    # What scripts/demo --json prints is there by the same names.
    keys = {"users", "items", "interactions", "coarse_recall_at_200", "ann_recall_at_200"}
    assert keys | {"ndcg_at_10", "hr_at_10", "timing_ms", "total_ms"} <= set(json.loads(text))
    assert release in report_path(tmp_path, release).read_text()
    assert sorted(path.suffix for path in (tmp_path / "reports").iterdir()) == [
        ".html",
        ".json",
        ".npz",
    ]


def test_a_release_that_has_seen_the_test_events_is_refused(data, tmp_path):
    release = released(data, tmp_path, holdout="none")
    with pytest.raises(InputError, match="shortlist train --holdout last"):
        evaluate(data, tmp_path, release, config=QUICK)
    assert not (tmp_path / "reports").exists()


def test_what_came_after_training_changes_no_figure(data, tmp_path):
    interactions = read_interactions(data)
    last = int(interactions.interaction_ids.max())
    release = released(data, tmp_path, holdout="last", last_interaction=last)
    before = evaluate(data, tmp_path, release, config=QUICK)
    # One user goes on, another one appears.
    add(data, [("u0", "i39", 900_000.0), ("new", "i1", 5.0)])
    data.commit()
    after = evaluate(data, tmp_path, release, config=QUICK)
    varying = {"created", "seconds", "timing_ms", "total_ms"}
    assert before.model_dump_json(exclude=varying) == after.model_dump_json(exclude=varying)
    silent = released(data, tmp_path, holdout="last", last_interaction=None)
    with pytest.raises(InputError, match="does not say on which events"):
        evaluate(data, tmp_path, silent, config=QUICK)


def test_a_release_trained_up_to_a_cut_is_tested_after_it(data, tmp_path):
    times = read_interactions(data).times
    cut = float(np.sort(times)[len(times) // 2])
    release = released(data, tmp_path, holdout=cut)
    result = evaluate(data, tmp_path, release, "time-split", QUICK)
    assert result.cut == cut
    assert result.release == release
    assert result.training_events == int((times < cut).sum())
    with pytest.raises(InputError, match="was trained with holdout"):
        evaluate(data, tmp_path, release, "leave-last-out", QUICK)


def test_a_time_split_trains_models_of_its_own_once_and_never_serves_them(data, tmp_path):
    wanted = TrainingConfig(coarse=CoarseConfig(epochs=1), fine=FineConfig(epochs=1))
    release = released(data, tmp_path, holdout="last", config=wanted.model_dump())
    config = QUICK.model_copy(update={"test_share": 0.3})
    result = evaluate(data, tmp_path, release, "time-split", config)
    assert result.cut == time_cut(read_interactions(data).times, 0.3)
    assert result.release != release
    assert current_release(tmp_path) == release
    assert report_path(tmp_path, release, "time-split").is_file()
    again = evaluate(data, tmp_path, release, "time-split", config)
    assert again.release == result.release
    assert len(list_releases(tmp_path / "time-split")) == 1


def test_unknown_protocols_and_releases_are_refused(data, tmp_path):
    with pytest.raises(InputError, match="expected one of leave-last-out, time-split"):
        evaluate(data, tmp_path, "any", "random-split")
    with pytest.raises(ReleaseError, match="no release"):
        evaluate(data, tmp_path, "2026-01-01T00-00-00-0000")
