"""Commands that make what is served: train, release, evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from features.errors import InputError
from serve.cli import context
from serve.cli.console import ERR, OUT, emit, progress
from serve.cli.data import Json

if TYPE_CHECKING:
    from ranking.evaluation.config import EvaluationConfig
    from serve.config import Settings

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
    config: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Train as this experiment's [training] says (TOML)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train both stages on the database and write a model run.

    Options win over the file of --config, and that replaces [training] of the settings.

    Example: shortlist train --holdout last
    """
    from serve.cli.build import run_training

    settings = context.settings()
    if config is not None:
        from ranking.evaluation.experiment import read_experiment

        settings = settings.model_copy(update={"training": read_experiment(config).training})
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
        Literal["leave-last-out", "time-split"] | None,
        typer.Option(help="Which events are the test; none: leave-last-out."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="Train and evaluate on this data, in a database of its own."
        ),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Experiment in TOML, or a preset's name.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="7,8,9", help="With --data or --config: seeds to train.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="With --data or --config: reuse nothing.")
    ] = False,
    hide_request_time: Annotated[
        bool,
        typer.Option(
            "--hide-request-time", help="Ask right after the previous event, not at the test's."
        ),
    ] = False,
    compare: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="A B", help="Compare two results: experiments, releases or files."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Evaluate a release, or models trained on other data, beside baselines.

    The current release is tested on the events kept from its training. With --data or --config,
    models are trained for each seed in a database of its own first. Results are written as JSON,
    an HTML report and the values of each user; --compare pairs two of them by user.

    Example: shortlist evaluate --data ml-1m --protocol leave-last-out --seeds 7,8,9
    """
    from serve.cli import experiment

    settings = context.settings()
    wanted = settings.evaluation
    if hide_request_time:
        wanted = wanted.model_copy(update={"hide_request_time": True})
    apart = data is not None or config is not None
    _refuse(
        {
            "RELEASE goes without --data, --config and --compare": name is not None
            and (apart or compare is not None),
            "--compare goes without --data and --config": compare is not None and apart,
            "--seeds needs --data or --config": seeds is not None and not apart,
            "--fresh needs --data or --config": fresh and not apart,
        }
    )
    if compare is not None:
        experiment.compare(settings, wanted, compare, protocol or "leave-last-out", as_json)
    elif apart:
        chosen = experiment.chosen(settings, config, data, protocol, seeds)
        experiment.run(settings, chosen, wanted, fresh, as_json)
    else:
        _evaluate_release(settings, name, protocol or "leave-last-out", wanted, as_json)


def _refuse(faults: dict[str, bool]) -> None:
    for what, given in faults.items():
        if given:
            raise InputError(f"{what}; see 'shortlist evaluate --help'")


def _evaluate_release(
    settings: Settings, name: str | None, protocol: str, config: EvaluationConfig, as_json: bool
) -> None:
    from ranking.evaluation.job import evaluate as run_evaluation
    from ranking.evaluation.job import report_path
    from ranking.release import current_release
    from serve.cli.tables import evaluation_table

    chosen = name or current_release(settings.home)
    if chosen is None:
        raise InputError(
            "there is no release to evaluate; run 'shortlist train', then 'shortlist release build'"
        )
    with context.connected(settings) as connection, progress() as report:
        result = run_evaluation(
            connection, settings.home, chosen, protocol, config, progress=report
        )
    if as_json:
        emit(result.model_dump(mode="json"))
        return
    OUT.print(evaluation_table(result))
    path = report_path(settings.home, chosen, protocol, config.hide_request_time)
    OUT.print(f"report: {path}", soft_wrap=True)
