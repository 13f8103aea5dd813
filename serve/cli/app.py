"""The tree of commands, and what happens when one of them fails."""

from __future__ import annotations

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from typer.core import TyperGroup

from features.errors import ShortlistError
from serve.cli import bench, data, demo, ingest, load, model, service, skew, sources
from serve.cli.console import ERR

_debug = False

ORDER = (
    *("demo", "db", "load", "source", "features", "train", "release", "evaluate", "serve"),
    "recommend",
)


class InOrder(TyperGroup):
    """Lists the commands in the order in which a new user needs them."""

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # the base's type is private
        """Return the names in that order, others at the end."""
        return sorted(self.commands, key=lambda name: (*ORDER, name).index(name))


app = typer.Typer(
    cls=InOrder,
    name="shortlist",
    epilog="First time? Run: shortlist demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
)
app.add_typer(data.db, name="db")
app.command()(ingest.load)
app.add_typer(sources.source, name="source")
data.features.command(epilog=skew.EPILOG)(skew.skew)
app.add_typer(data.features, name="features")
app.command()(model.train)
app.add_typer(model.release, name="release")
app.command()(model.evaluate)
app.command()(service.serve)
app.command()(service.recommend)
app.command()(load.loadtest)
app.add_typer(bench.bench, name="bench")
app.command()(demo.demo)


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")
    ] = False,
) -> None:
    """Two-stage recommendation ranking: SQL features, Faiss retrieval, an ONNX ranker."""
    global _debug
    _debug = debug


def run() -> None:
    """Run one command; turn errors into a message and an exit status of 1."""
    try:
        # A signal must not end a command before it has stopped what it started.
        with service.Stoppable():
            app()
    except ShortlistError as error:
        ERR.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        report_unexpected(error)
        sys.exit(1)


def report_unexpected(error: Exception) -> None:
    """Write the traceback of `error` to a log file, and on stderr say what to do with it."""
    if _debug:
        traceback.print_exception(error)
        return
    text = "".join(traceback.format_exception(error))
    where = Path(os.environ.get("SHORTLIST_HOME") or ".shortlist") / "logs"
    path = where / f"error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    try:
        where.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    except OSError:
        sys.stderr.write(text)
        return
    ERR.print(
        f"[bold red]unexpected error:[/] {escape(type(error).__name__)}: {escape(str(error))}\n"
        f"next:  the traceback is in {path}; 'shortlist --debug …' prints it here instead.",
        soft_wrap=True,
    )
