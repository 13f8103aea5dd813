"""Commands for the tables of the user that events are read from."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape

from serve.cli import context
from serve.cli.console import ERR, OUT, emit, table
from serve.cli.data import Json

source = typer.Typer(help="Tables of yours that events are read from: list them, forget one.")


@source.command("list", epilog="Example: shortlist source list")
def show(as_json: Json = False) -> None:
    """List the tables that 'shortlist load --table' made sources, and their views."""
    from features.ingest.sources import list_sources

    with context.connected(context.settings()) as connection:
        found = list_sources(connection)
    if as_json:
        emit(
            [
                asdict(one) | {"loaded_at": one.loaded_at and one.loaded_at.isoformat()}
                for one in found
            ]
        )
        return
    rows = table("Sources", "table", "view", "grows by", "mapping", "last read")
    for one in found:
        said = ", ".join(f"{name}={column}" for name, column in one.wish.columns.items())
        read = f"{one.loaded_at:%Y-%m-%d %H:%M}" if one.loaded_at else "never"
        grows = one.increasing or ""
        rows.add_row(*map(escape, (one.events, f"shortlist.{one.view}", grows, said, read)))
    OUT.print(rows)


@source.command(epilog="Example: shortlist source remove public.ratings")
def remove(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="As it is listed.")],
) -> None:
    """Forget a source and drop its view; the events that came from it stay."""
    from features.ingest.sources import remove_source

    with context.connected(context.settings()) as connection:
        remove_source(connection, name)
    ERR.print(f"{escape(name)} is no source any more; its events stay")
