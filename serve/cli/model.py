"""Commands that make what is served: train, release, evaluate."""

from __future__ import annotations

from typing import Annotated

import typer

from serve.cli import context
from serve.cli.console import OUT, emit, progress
from serve.cli.data import Json

release = typer.Typer(help="Releases: build, list, promote, roll back.")


def train(
    holdout: Annotated[
        str,
        typer.Option(help="What training may not see: last (event of each user), none, time."),
    ] = "last",
    as_json: Json = False,
) -> None:
    """Train both stages on the database and write a model run.

    Example: shortlist train --holdout last
    """
    from ranking.training import train as run_training

    settings = context.settings()
    with context.connected(settings) as connection, progress() as report:
        run = run_training(connection, settings.home, report)
    emit({"run": str(run)}) if as_json else OUT.print(str(run), soft_wrap=True)
