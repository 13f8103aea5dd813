"""The load test of a running service."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Annotated, Any

import typer
from rich.markup import escape

from features.errors import InputError, ShortlistError
from serve.cli import context
from serve.cli.console import ERR, OUT, emit, progress, table
from serve.cli.data import Json

SAMPLE = 2000


def loadtest(
    url: Annotated[
        str | None, typer.Option(help="Service to test; none starts one for the test.")
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="Simulated users at the same time.")] = 16,
    seconds: Annotated[int, typer.Option(min=1, help="Duration, in seconds.")] = 30,
    count: Annotated[int, typer.Option(min=1, max=500, help="Items in each request.")] = 20,
    max_error_rate: Annotated[float, typer.Option(help="Share of requests that may fail.")] = 0.0,
    max_p95_ms: Annotated[float, typer.Option(help="Limit for p95 in ms; 0: none.")] = 250.0,
    max_p99_ms: Annotated[float, typer.Option(help="Limit for p99 in ms; 0: none.")] = 500.0,
    keep_events: Annotated[
        bool, typer.Option(help="Leave the posted events and impressions in the database.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put users on the service: 80% recommendations, 15% events, 5% similar items.

    Every answer must be full and free of seen items. Exits with 1 when an answer is wrong or a
    limit is crossed. What the test wrote is removed at its end.

    Example: shortlist loadtest --users 32 --seconds 60 --max-p99-ms 100
    """
    from loadtests import run as locust
    from serve import deployment
    from serve.cli.people import forget_load, sample_users

    settings = context.settings()
    load = locust.Load(users, seconds, count, max_error_rate, max_p95_ms, max_p99_ms)
    try:
        locust.require_locust()
    except locust.LoadTestFailed as error:
        raise ShortlistError(str(error)) from error
    with ExitStack() as stack:
        connection = stack.enter_context(context.connected(settings))
        people = sample_users(connection, SAMPLE)
        connection.rollback()
        if not people:
            raise InputError("the database has no user with interactions; run 'shortlist load'")
        if not keep_events:
            # Left before the connection and after an own service, which still writes till then.
            stack.callback(forget_load, connection)
        if url is None:
            ERR.print("starting a service for the test")
            config = settings.serve.model_copy(update={"port": 0})
            own = settings.model_copy(update={"serve": config})
            url = stack.enter_context(deployment.start(own)).url
        else:
            # Impressions are written behind the answers.
            stack.callback(time.sleep, settings.serve.impression_flush_s + 1)
        try:
            with progress() as report:
                found = locust.run(url.rstrip("/"), people, load, report)
        except locust.LoadTestFailed as error:
            raise ShortlistError(str(error)) from error
    if as_json:
        emit(found)
    else:
        show(found, load.users)
    if found["broken_thresholds"]:
        raise typer.Exit(1)


def show(found: dict[str, Any], users: int) -> None:
    """Print client and stage percentiles together, then what was wrong."""
    columns = ("count", "p50 ms", "p95 ms", "p99 ms", "max ms")
    rows = table(
        f"{found['requests']:,} requests of {users} users, {found['rps']:,.0f}/s, "
        f"{found['error_rate']:.2%} failed",
        *("measured by", "", *columns),
        right=columns,
    )
    for where, name in (("client", "client_ms"), ("server", "stages_ms")):
        for what, row in found[name].items():
            figures = [f"{row[key]:.2f}" for key in ("p50", "p95", "p99", "max")]
            rows.add_row(where, what, f"{row['count']:,}", *figures)
            where = ""
    OUT.print(rows)
    for error, times in found["errors"].items():
        ERR.print(f"[red]{times:,} x {escape(error)}[/]")
    for broken in found["broken_thresholds"]:
        ERR.print(f"[bold red]failed:[/] {escape(broken)}")
