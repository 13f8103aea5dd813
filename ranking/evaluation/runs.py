"""Run an experiment: train, release and evaluate each seed, then put the seeds together.

What is finished is not done again: a seed whose data, settings and code are those of an earlier
run keeps its models, and its evaluation where that is of the same code too.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from features.errors import ConfigError, InputError, ShortlistError
from features.spec import spec_hash
from features.store import read_interactions
from ranking.evaluation import provenance
from ranking.evaluation.bootstrap import Bootstrap
from ranking.evaluation.config import EvaluationConfig
from ranking.evaluation.dataset import DataSet
from ranking.evaluation.experiment import Experiment
from ranking.evaluation.job import evaluate, result_path, values_path
from ranking.evaluation.result import EvaluationResult
from ranking.evaluation.summary import (
    DataFacts,
    ExperimentResult,
    SeedRun,
    model_spreads,
    over_users,
    slice_spreads,
)
from ranking.evaluation.values import load_values
from ranking.protocols import time_cut
from ranking.release import ReleaseConfig, build_release, load_release, release_path
from ranking.training_config import TrainingConfig
from ranking.types import Progress

if TYPE_CHECKING:
    import psycopg

    from features.store import Interactions

_STATE = "state.json"


def experiment_folder(home: Path, name: str) -> Path:
    """Return where all files of the experiment `name` are."""
    return home / "experiments" / name


def experiment_path(home: Path, name: str, protocol: str, hidden: bool = False) -> Path:
    """Return where the result of an experiment is written."""
    suffix = "-hidden-time" if hidden else ""
    return experiment_folder(home, name) / f"{protocol}{suffix}.json"


@dataclass(frozen=True, slots=True)
class _Job:
    """What all seeds of an experiment share."""

    connection: psycopg.Connection[Any]
    experiment: Experiment
    data: DataSet
    folder: Path
    baselines: Path
    release: ReleaseConfig
    config: EvaluationConfig
    cut: float | None
    progress: Progress | None


def run_experiment(
    connection: psycopg.Connection[Any],
    data: DataSet,
    experiment: Experiment,
    home: Path,
    release: ReleaseConfig | None = None,
    config: EvaluationConfig | None = None,
    progress: Progress | None = None,
    seconds: dict[str, float] | None = None,
) -> ExperimentResult:
    """Train and evaluate every seed and write ``home/experiments/<name>/<protocol>.json``.

    Parameters
    ----------
    connection : psycopg.Connection
        Of :func:`ranking.evaluation.dataset.opened`.
    data : DataSet
        What the database holds.
    experiment : Experiment
    home : Path
        Models, releases and reports of a seed are written to
        ``home/experiments/<name>/<protocol>-<seed>``.
    release : ReleaseConfig, optional
    config : EvaluationConfig, optional
    progress : callable, optional
        Called as ``progress(step, done, total)``.
    seconds : dict, optional
        Wall time of what came before, to be part of the result.

    Returns
    -------
    ExperimentResult

    Raises
    ------
    InputError
        No user can be tested, or the protocol does not go with the settings.
    """
    started = time.perf_counter()
    config = config or EvaluationConfig()
    if config.hide_request_time and experiment.protocol != "leave-last-out":
        raise InputError(
            f"the request's time cannot be hidden with {experiment.protocol}: there all requests "
            "come at the cut; leave --hide-request-time out"
        )
    interactions = read_interactions(connection)
    split = experiment.protocol == "time-split"
    job = _Job(
        connection=connection,
        experiment=experiment,
        data=data,
        folder=experiment_folder(home, experiment.name),
        baselines=home / "experiments" / ".baselines",
        release=release or ReleaseConfig(),
        config=config,
        cut=time_cut(interactions.times, config.test_share) if split else None,
        progress=progress,
    )
    runs, results = [], []
    for seed in experiment.seeds:
        run, result = _run_seed(job, seed)
        runs.append(run)
        results.append(result)
    known = dict(seconds or {})
    for stage in ("train", "release", "evaluate"):
        known[stage] = round(sum(run.seconds[stage] for run in runs), 3)
    known["total"] = round(sum((seconds or {}).values()) + time.perf_counter() - started, 3)
    path = experiment_path(home, experiment.name, experiment.protocol, config.hide_request_time)
    found = _together(job, interactions, runs, results, known, path)
    _write(path, found.model_dump_json(indent=2) + "\n")
    return found


def _together(
    job: _Job,
    interactions: Interactions,
    runs: list[SeedRun],
    results: list[EvaluationResult],
    seconds: dict[str, float],
    path: Path,
) -> ExperimentResult:
    config = job.config
    intervals, paired = over_users(
        [load_values(path.parent / run.values) for run in runs],
        Bootstrap(config.resamples, config.confidence, config.seed),
    )
    first = results[0]
    return ExperimentResult(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        experiment=job.experiment,
        config={
            "release": job.release.model_dump(mode="json"),
            "evaluation": config.model_dump(mode="json", exclude={"data_folder"}),
        },
        protocol=job.experiment.protocol,
        request_gap_s=first.request_gap_s,
        data=DataFacts(
            name=job.experiment.data,
            fingerprint=job.data.fingerprint,
            users=first.users,
            items=first.items,
            interactions=len(interactions.times),
        ),
        test_users=first.test_users,
        test_events=first.test_events,
        seeds=list(job.experiment.seeds),
        models=model_spreads(results),
        intervals=intervals,
        differences=paired,
        slices=slice_spreads(results),
        settings={name: figures.settings for name, figures in first.models.items()},
        labels={name: figures.label for name, figures in first.models.items()},
        runs=runs,
        seconds=seconds,
        commit=provenance.commit(),
        code=provenance.all_code(),
        spec_hash=spec_hash(),
        versions=provenance.versions() | {"postgresql": _server_version(job.connection)},
        machine=provenance.machine(),
    )


def _run_seed(job: _Job, seed: int) -> tuple[SeedRun, EvaluationResult]:
    protocol, home = job.experiment.protocol, job.folder / f"{job.experiment.protocol}-{seed}"
    wanted = job.experiment.training.model_copy(
        update={"seed": seed, "holdout": "last" if job.cut is None else job.cut}
    )
    key = provenance.key_of(
        {
            "data": job.data.fingerprint,
            "protocol": protocol,
            "training": wanted.model_dump(mode="json"),
            "release": job.release.model_dump(mode="json"),
            "spec": spec_hash(),
            "code": provenance.model_code(),
            "versions": provenance.versions(),
        }
    )
    state = _read_state(home)
    trained = state.get("key") != key or not _is_whole(home, str(state.get("release")))
    if trained:
        state = {"key": key, "evaluated": {}} | _make_release(job, wanted, home)
        _write(home / _STATE, json.dumps(state, indent=2) + "\n")
    release = str(state["release"])
    path = result_path(home, release, protocol, job.config.hide_request_time)
    evaluation_key = provenance.key_of(
        {
            "release": release,
            "evaluation": job.config.model_dump(mode="json", exclude={"data_folder"}),
            "code": provenance.all_code(),
        }
    )
    known = state["evaluated"].get(path.name, {})
    if known.get("key") == evaluation_key and path.is_file() and values_path(path).is_file():
        result = EvaluationResult.model_validate_json(path.read_text(encoding="utf-8"))
    else:
        with _timed() as took:
            result = evaluate(
                job.connection, home, release, protocol, job.config, _of(job, seed), job.baselines
            )
        known = {"key": evaluation_key, "seconds": took[0]}
        state["evaluated"][path.name] = known
        _write(home / _STATE, json.dumps(state, indent=2) + "\n")
    training = load_release(release_path(home, release)).training
    run = SeedRun(
        seed=seed,
        release=release,
        result=path.relative_to(job.folder).as_posix(),
        values=values_path(path).relative_to(job.folder).as_posix(),
        trained=trained,
        seconds={**state["seconds"], "evaluate": known["seconds"]},
        training_seconds=training["seconds"],
    )
    return run, result


def _make_release(job: _Job, wanted: TrainingConfig, home: Path) -> dict[str, Any]:
    try:
        from ranking.training import train
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"an experiment trains models, which needs the package {error.name!r}; next: "
            "pip install -c constraints.txt -e '.[cpu,train]'"
        ) from None
    report = _of(job, wanted.seed)
    with _timed() as training:
        run = train(job.connection, wanted, home, report)
    with _timed() as building:
        release = build_release(job.connection, run, home, job.release, report)
    return {"release": release, "seconds": {"train": training[0], "release": building[0]}}


def _of(job: _Job, seed: int) -> Progress | None:
    """Return a progress that says which seed is at work, where there are several."""
    report = job.progress
    if report is None or len(job.experiment.seeds) == 1:
        return report
    return lambda step, done, total, detail="": report(f"seed {seed}: {step}", done, total, detail)


def _is_whole(home: Path, release: str) -> bool:
    try:
        load_release(release_path(home, release))
    except ShortlistError:
        return False
    return True


def _read_state(home: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((home / _STATE).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return state


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


@contextmanager
def _timed() -> Iterator[list[float]]:
    took: list[float] = []
    start = time.perf_counter()
    yield took
    took.append(round(time.perf_counter() - start, 3))


def _server_version(connection: psycopg.Connection[Any]) -> str:
    return str(connection.info.parameter_status("server_version"))


def forget(home: Path, name: str) -> None:
    """Remove all models and results of an experiment."""
    shutil.rmtree(experiment_folder(home, name), ignore_errors=True)
