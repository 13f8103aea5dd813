"""Commands that make what is served: train, release, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from features.errors import InputError
from serve.cli import context
from serve.cli.console import ERR, OUT, emit, progress
from serve.cli.data import Json

release = typer.Typer(help="Releases: build, list, promote, roll back.")


def train(
    holdout: Annotated[
        str | None,
        typer.Option(
            help="Events kept from training: last (one of each user), none, or all from a moment"
            " on, in unix seconds."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Equal seeds give equal models.")] = None,
    as_json: Json = False,
) -> None:
    """Train both stages on the database and write a model run.

    Options win over the settings.

    Example: shortlist train --holdout last
    """
    from serve.cli.build import run_training

    settings = context.settings()
    with context.connected(settings) as connection, progress() as report:
        run = run_training(settings, connection, report, holdout, seed)
    emit({"run": str(run)}) if as_json else OUT.print(str(run), soft_wrap=True)


@release.command("build", epilog="Example: shortlist release build")
def build_(
    run: Annotated[
        Path | None, typer.Argument(help="Model run to release; none: the latest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Build a release from a model run, verify it and make it the current one."""
    from serve.cli.build import latest_run, run_release

    settings = context.settings()
    chosen = run if run is not None else latest_run(settings.home)
    with context.connected(settings) as connection, progress() as report:
        made = run_release(settings, connection, chosen, report)
    emit({"release": made}) if as_json else OUT.print(made)


@release.command("list", epilog="Example: shortlist release list")
def list_(as_json: Json = False) -> None:
    """List the releases, newest first; a star marks the current one."""
    from ranking.release import current_release, list_releases

    home = context.settings().home
    current, found = current_release(home), list_releases(home)
    if as_json:
        emit({"current": current, "releases": found})
        return
    if not found:
        ERR.print(
            "no releases yet; make one with 'shortlist train', then 'shortlist release build'"
        )
    for name in found:
        OUT.print(("* " if name == current else "  ") + name)


@release.command(epilog="Example: shortlist release promote 2026-12-01T09-30-12-4f1c")
def promote(name: Annotated[str, typer.Argument(help="Id of the release.")]) -> None:
    """Make a release the current one; a running service takes it over within seconds."""
    from ranking.release import promote as make_current

    make_current(context.settings().home, name)
    OUT.print(name)


@release.command(epilog="Example: shortlist release rollback")
def rollback() -> None:
    """Go back to the release that was current before."""
    from ranking.release import rollback as go_back

    OUT.print(go_back(context.settings().home))


def evaluate(
    name: Annotated[
        str | None, typer.Argument(metavar="RELEASE", help="Release; none: the current one.")
    ] = None,
    protocol: Annotated[
        Literal["leave-last-out", "time-split"], typer.Option(help="Which events are the test.")
    ] = "leave-last-out",
    as_json: Json = False,
) -> None:
    """Evaluate a release beside its baselines; write a JSON file and an HTML report.

    Example: shortlist evaluate --protocol leave-last-out
    """
    from ranking.evaluation.job import evaluate as run_evaluation
    from ranking.evaluation.job import report_path
    from ranking.release import current_release
    from serve.cli.tables import evaluation_table

    settings = context.settings()
    chosen = name or current_release(settings.home)
    if chosen is None:
        raise InputError(
            "there is no release to evaluate; run 'shortlist train', then 'shortlist release build'"
        )
    with context.connected(settings) as connection, progress() as report:
        result = run_evaluation(connection, settings.home, chosen, protocol, progress=report)
    if as_json:
        emit(result.model_dump(mode="json"))
        return
    OUT.print(evaluation_table(result))
    OUT.print(f"report: {report_path(settings.home, chosen, protocol)}", soft_wrap=True)
