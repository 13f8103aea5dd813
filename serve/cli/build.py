"""The steps from ratings to a release, each skipped where its result is there already."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from features.errors import ConfigError, InputError, ShortlistError
from serve.cli.console import ERR

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from ranking.evaluation.result import EvaluationResult
    from serve.cli.console import Report, Steps
    from serve.config import Settings

_COUNTS = """
select
    (select count(*) from users), (select count(*) from items),
    (select count(*) from interactions)
"""


@dataclass(frozen=True, slots=True)
class Made:
    """What there is to serve: the size of the data, and the id of the current release."""

    users: int
    items: int
    interactions: int
    release: str


def build(settings: Settings, connection: psycopg.Connection[Any], steps: Steps) -> Made:
    """Load the sample, refresh, train and build a release, as far as any is missing."""
    from features import refresh, schema
    from features.ingest.load import load

    with steps("schema", "Tables and views are applied"):
        applied = schema.apply(connection)
    users, items, interactions = counts(connection)
    if interactions == 0:
        with steps("load", "The MovieLens sample is loaded") as report:
            # As if it ended today: trending and new items mean something then.
            load(connection, "sample", rebase_to_now=True, progress=report)
        users, items, interactions = counts(connection)
    else:
        steps.skip("load", f"{users:,} users, {items:,} items, {interactions:,} interactions")
    # A view that was made anew is empty until it is refreshed.
    if applied or not is_refreshed(connection):
        with steps("features", "Features are computed in SQL") as report:
            refresh.refresh(connection, report)
    else:
        steps.skip("features", "Features")
    current = usable_release(settings.home)
    if current is None:
        current = make_release(settings, connection, steps)
    else:
        steps.skip("release", f"Release {current}")
    return Made(users, items, interactions, current)


def usable_release(home: Path) -> str | None:
    """Return the current release if it is whole and this version can serve it."""
    from ranking.release import current_release, load_release, release_path

    current = current_release(home)
    if current is None:
        return None
    try:
        load_release(release_path(home, current))
    except ShortlistError as error:
        ERR.print(f"making a new release, since {current} cannot be served: {escape(str(error))}")
        return None
    return current


def is_refreshed(connection: psycopg.Connection[Any]) -> bool:
    """Return whether the feature views were ever filled."""
    with connection.transaction():
        row = connection.execute("select snapshot is not null from refresh_point").fetchone()
    return row is not None and bool(row[0])


def counts(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """Return how many users, items and interactions the database has."""
    with connection.transaction():
        row = connection.execute(_COUNTS).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


def run_training(
    settings: Settings,
    connection: psycopg.Connection[Any],
    report: Report,
    holdout: str | None = None,
    seed: int | None = None,
) -> Path:
    """Train both stages and return the run.

    Parameters
    ----------
    settings : Settings
    connection : psycopg.Connection
    report : callable
    holdout : str, optional
        ``last``, ``none``, or a moment in unix seconds; None takes the settings'.
    seed : int, optional
        None takes the settings'.

    Raises
    ------
    ConfigError
        The packages for training are not installed.
    InputError
        `holdout` is none of these, or there is nothing to train on.
    """
    try:
        from ranking.training import train
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"training needs the package {error.name!r}, which is not installed; next: "
            "pip install -c constraints.txt -e '.[cpu,train]'"
        ) from None
    config = settings.training
    if holdout in ("last", "none"):
        config = config.model_copy(update={"holdout": holdout})
    elif holdout is not None:
        try:
            moment = float(holdout)
        except ValueError:
            moment = math.nan
        if not math.isfinite(moment):
            raise InputError(
                f"holdout {holdout!r}: expected 'last', 'none', or a moment in unix seconds"
            )
        config = config.model_copy(update={"holdout": moment})
    if seed is not None:
        config = config.model_copy(update={"seed": seed})
    return train(connection, config, settings.home, report)


def latest_run(home: Path) -> Path:
    """Return the newest model run; its name begins with the time it was made.

    Raises
    ------
    InputError
        There is none.
    """
    runs = sorted(path.parent for path in (home / "models").glob("*/training.json"))
    if not runs:
        raise InputError(f"there is no model run in {home / 'models'}; run 'shortlist train'")
    return runs[-1]


def run_release(
    settings: Settings, connection: psycopg.Connection[Any], run: Path, report: Report
) -> str:
    """Build a release of `run`, verify it, make it current, and return its id."""
    from ranking.release import build_release

    if not (run / "training.json").is_file():
        raise InputError(f"{run} is no model run: expected a folder that 'shortlist train' wrote")
    return build_release(connection, run, settings.home, settings.release, report)


def make_release(settings: Settings, connection: psycopg.Connection[Any], steps: Steps) -> str:
    """Train both stages and build a release of them; a run that is there already is taken."""
    with steps("train", "Both stages are trained") as report:
        run = run_training(settings, connection, report)
    with steps("release", "A release is built and verified") as report:
        return run_release(settings, connection, run, report)


def evaluation(
    settings: Settings, connection: psycopg.Connection[Any], release: str, report: Report
) -> EvaluationResult:
    """Return the leave-last-out evaluation of `release`, from its file where there is one."""
    from ranking.evaluation.job import evaluate, result_path
    from ranking.evaluation.result import EvaluationResult

    path = result_path(settings.home, release)
    if path.exists():
        return EvaluationResult.model_validate_json(path.read_text())
    return evaluate(connection, settings.home, release, config=settings.evaluation, progress=report)
