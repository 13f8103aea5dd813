"""Commands that compare: the service with its computation, the features with bare PostgreSQL."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from features.errors import InputError
from serve.cli import context
from serve.cli.console import OUT, emit, progress, seconds, table
from serve.cli.data import Json

bench = typer.Typer(help="Measure what Shortlist costs beside the bare parts it is made of.")


@bench.command("serve", epilog="Example: shortlist bench serve --json")
def bench_serve(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that take turns.")] = 3,
    requests: Annotated[int, typer.Option(min=50, help="Requests in each measurement.")] = 1000,
    as_json: Json = False,
) -> None:
    """Compare the stages in process with `colocated` and `split` over HTTP, in one run."""
    from loadtests import bench as job
    from serve.cli.people import forget_load, sample_users

    settings = context.settings()
    with context.connected(settings) as connection:
        people = [name for name, _ in sample_users(connection, job.PEOPLE)]
        connection.rollback()
        if not people:
            raise InputError("the database has no user with interactions; run 'shortlist load'")
        try:
            with progress() as report:
                found = job.run(settings, people, rounds, requests, report)
        finally:
            forget_load(connection)
    if as_json:
        emit(found)
        return
    columns = ("clients", "p50 ms", "p99 ms", "requests/s", "client CPU ms")
    rows = table("Same release, same requests, one run", "", *columns, right=columns)
    rows.add_row("in process", "1", f"{found['raw_ms']:.2f}", "", f"{found['raw_qps']:.0f}", "")
    for name, by_clients in found["servers"].items():
        for clients, row in by_clients.items():
            rows.add_row(
                *(name, clients, f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}"),
                *(f"{row['qps']:.0f}", f"{row['client_cpu_ms']:.3f}"),
            )
            name = ""
    OUT.print(rows)
    for name, ratio in found["ratios"].items():
        OUT.print(f"  {name} {ratio:.2f}")


@bench.command("features", epilog="Example: shortlist bench features --events 1000000 --json")
def bench_features(
    events: Annotated[
        int, typer.Option(min=1_000, help="Events of the history; it is doubled once.")
    ] = 20_000_000,
    load_rows: Annotated[
        int, typer.Option(min=10_000, help="Rows of the file that is loaded.")
    ] = 5_000_000,
    new_events: Annotated[int, typer.Option(min=1, help="Events between two refreshes.")] = 10_000,
    users: Annotated[int, typer.Option(min=100, help="Synthetic users.")] = 500_000,
    items: Annotated[int, typer.Option(min=100, help="Synthetic items.")] = 200_000,
    asof_rows: Annotated[int, typer.Option(min=100, help="Values read as of.")] = 200_000,
    as_json: Json = False,
) -> None:
    """Compare load, refresh, as-of reads and user states with bare PostgreSQL, in one run.

    Works in a database of its own on the same server and drops it at the end. The default scale
    needs about 20 GB of disk and half an hour.
    """
    from loadtests import bench_features as job
    from loadtests.world import World

    scale = job.Scale(load_rows, events, new_events, asof_rows, World(users, items))
    with context.database(context.settings()) as url, progress() as report:
        found = job.run(url, scale, report)
    if as_json:
        emit(found)
    else:
        show_features(found)


def show_features(found: dict[str, Any]) -> None:
    """Print the ratios, what they were made of, and the largest tables."""
    took = found["seconds"]
    rows = table("Beside bare PostgreSQL, one run", "", "ratio", "measured", right=("ratio",))
    for name, text in (
        (
            "load_over_copy",
            f"{found['load_rows_per_s']:,.0f} of {found['copy_rows_per_s']:,.0f} rows/s,"
            f" peak {found['load_peak_mib']:,.0f} MiB",
        ),
        (
            "refresh_fraction",
            f"{seconds(took['refresh'])} of {seconds(took['full_rebuild'])}",
        ),
        (
            "refresh_fraction_double_history",
            f"{seconds(took['refresh_double_history'])} of"
            f" {seconds(took['full_rebuild_double_history'])}",
        ),
        (
            "refresh_growth_double_history",
            f"{seconds(took['refresh_double_history'])} to {seconds(took['refresh'])}",
        ),
        ("asof_over_copy", f"{found['asof_rows_per_s']:,.0f} rows/s"),
        (
            "user_state_over_select",
            f"{found['user_state_p50_ms']:.3f} of {found['select_p50_ms']:.3f} ms",
        ),
    ):
        rows.add_row(name, f"{found[name]:.4f}", text)
    OUT.print(rows)
    columns = ("rows", "table MiB", "indexes MiB")
    rows = table("Largest tables, history doubled", "", *columns, right=columns)
    for name, size in list(found["sizes"]["double_history"].items())[:8]:
        mib = [f"{size[key] / 2**20:,.0f}" for key in ("table_bytes", "index_bytes")]
        rows.add_row(name, f"{size['rows']:,}", *mib)
    OUT.print(rows)
