"""Commands that keep the database: start, schema, features."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from serve.cli import context
from serve.cli.console import ERR, OUT, emit, progress, seconds, table

db = typer.Typer(help="The database: the embedded server, its URL, the schema.")
features = typer.Typer(help="The features: refresh them, check them.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


@db.command(epilog="Example: shortlist db start")
def start(as_json: Json = False) -> None:
    """Start the embedded PostgreSQL server; it runs until `shortlist db stop`."""
    from features.database import start_embedded

    settings = context.settings()
    if settings.database.url is not None:
        ERR.print("SHORTLIST_DATABASE_URL names a server: the embedded one is not needed")
        url = settings.database.url
    else:
        url = start_embedded(settings.home)
        context.keep_running(settings.home)
    emit({"url": url}) if as_json else OUT.print(url, soft_wrap=True)


@db.command(epilog="Example: shortlist db stop")
def stop() -> None:
    """Stop the embedded PostgreSQL server; nothing that was committed is lost."""
    from features.database import stop_embedded

    settings = context.settings()
    stopped = stop_embedded(settings.home)
    context.keep_running(settings.home)
    ERR.print("stopped" if stopped else "no embedded server was running")


@db.command(epilog='Example: psql "$(shortlist db url)"')
def url() -> None:
    """Print the URL of the running database."""
    from features.database import embedded_url
    from features.errors import DatabaseUnavailable

    settings = context.settings()
    found = settings.database.url or embedded_url(settings.home)
    if found is None:
        raise DatabaseUnavailable(
            f"the embedded server of {settings.home} is not running; start it with"
            " 'shortlist db start'"
        )
    OUT.print(found, soft_wrap=True)


@db.command(epilog="Example: shortlist db apply")
def apply(as_json: Json = False) -> None:
    """Bring tables and views to this version and check their columns; a second run only checks."""
    from features import schema, tables

    wanted = context.settings()
    with context.database(wanted) as url:
        with context.connected(wanted) as connection:
            applied = schema.apply(connection, partition_days=wanted.database.partition_days)
        tables.verify(tables.engine(url))
    if as_json:
        emit({"applied": applied})
    elif applied:
        OUT.print("applied " + ", ".join(applied))
    else:
        OUT.print("nothing to do: the schema is up to date, its columns are as described")


@db.command(epilog="Example: shortlist db retain --days 365")
def retain(
    days: Annotated[int, typer.Option(help="Whole days before today whose raw events stay.")],
    as_json: Json = False,
) -> None:
    """Drop raw events older than some days; features keep their values, daily sums stay."""
    from features.retention import drop_raw_events

    settings = context.settings()
    with context.connected(settings) as connection, progress() as report:
        done = drop_raw_events(connection, days, report, settings.database.partition_days)
    if as_json:
        emit({**asdict(done), "raw_since": done.raw_since.isoformat()})
        return
    rows = table(f"Raw events since {done.raw_since}", "dropped", "rows", right=("rows",))
    for name, count in done.counts.items():
        rows.add_row(name, f"{count:,}")
    OUT.print(rows)
    if done.partitions:
        OUT.print("dropped whole: " + ", ".join(done.partitions))


@db.command(epilog="Example: shortlist db erase 42")
def erase(
    user: Annotated[str, typer.Argument(help="External id of the user.")], as_json: Json = False
) -> None:
    """Delete every row of a user, and the user's part in the sums over all users.

    A running service does the same, and drops what it still holds, on DELETE /v1/users/{id}.
    """
    from features.erasure import erase_user

    with context.connected(context.settings()) as connection:
        counts = erase_user(connection, user).counts
    if as_json:
        emit({"id": user, "rows": counts})
        return
    rows = table(f"Erased {escape(repr(user))}", "table", "rows", right=("rows",))
    for name, deleted in counts.items():
        rows.add_row(name, f"{deleted:,}")
    OUT.print(rows)


@features.command(epilog="Example: shortlist features refresh")
def refresh(
    full: Annotated[
        bool, typer.Option("--full", help="Count everything anew from the raw events.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Add what is new to the features; readers see the old values until all is done."""
    from features import refresh as job

    settings = context.settings()
    with context.connected(settings) as connection, progress() as report:
        result = job.refresh(
            connection, report, full=full, partition_days=settings.database.partition_days
        )
    if as_json:
        emit({"as_of": result.as_of.isoformat(), "full": result.full, "seconds": result.seconds})
        return
    title = f"Features as of {result.as_of:%Y-%m-%d %H:%M:%S %Z}"
    rows = table(title, "step", "time", right=("time",))
    for step, took in result.seconds.items():
        rows.add_row(step, seconds(took))
    OUT.print(rows)


@features.command(epilog="Example: shortlist features check")
def check(as_json: Json = False) -> None:
    """Run the checks of sql/99_checks.sql; exits with 1 when one fails."""
    from features import refresh as job

    with context.connected(context.settings()) as connection:
        found = job.checks(connection)
    if as_json:
        emit([asdict(row) for row in found])
    else:
        rows = table("Checks", "", "check", "detail")
        for row in found:
            mark = "[green]ok[/]" if row.passed else "[bold red]failed[/]"
            rows.add_row(mark, escape(row.check), escape(row.detail))
        OUT.print(rows)
    if not all(row.passed for row in found):
        raise typer.Exit(1)
