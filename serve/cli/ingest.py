"""The command that loads data: files of any usual format, or tables that are there already."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from features.ingest.mapping import Format, Preset, TimeUnit, Wish, read_wish
from serve.cli import context
from serve.cli.console import ERR, OUT, Report, emit, progress, seconds, table
from serve.cli.data import Json

if TYPE_CHECKING:
    from features.ingest.load import LoadReport
    from features.ingest.preview import Preview

SHOWN_REJECTS = 10


def _wish(
    columns: list[str], file: Path | None, names: str, separator: str, unit: TimeUnit, kind: str
) -> Wish:
    """Return what the flags say, and where they say nothing the mapping file."""
    from features.errors import InputError

    pairs = {}
    for text in columns:
        role, equals, name = text.partition("=")
        if not equals or not name:
            raise InputError(f"--map {text!r}: expected NAME=COLUMN, as in user_id=uid")
        pairs[role.strip()] = name
    said = Wish(
        pairs,
        tuple(name.strip() for name in names.split(",")) if names else (),
        separator.replace("\\t", "\t"),
        unit,
        kind,
    )
    return said if file is None else said.over(read_wish(file))


class _Rate:
    """Counts rows, and shows how many came in a second since the first."""

    def __init__(self) -> None:
        self.rows = 0
        self.started: float | None = None

    def add(self, rows: int) -> None:
        self.rows += rows

    def __str__(self) -> str:
        """Return the rate as text, nothing before there is one."""
        self.started = self.started or time.monotonic()
        took = time.monotonic() - self.started
        return f"{self.rows / took:,.0f} rows/s" if self.rows and took > 0 else ""


@contextmanager
def _progress(rate: _Rate) -> Iterator[Report]:
    if not ERR.is_terminal:
        with progress() as lines:
            yield lines
        return
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("[dim]left[/]"),
        TimeRemainingColumn(),
        console=ERR,
        transient=True,
    )
    tasks: dict[str, Any] = {}

    def report(step: str, done: int, total: int, _detail: str = "", /) -> None:
        if step not in tasks:
            tasks[step] = bars.add_task(f"  {step}", total=total or None, rate="")
        shown = str(rate) if step == "interactions" else ""
        bars.update(tasks[step], completed=done, total=total or None, rate=shown)

    with bars:
        yield report


def load(
    path: Annotated[
        str | None,
        typer.Argument(help="Folder, file, or - for standard input; none loads the sample."),
    ] = None,
    preset: Annotated[
        Preset, typer.Option(help="Published layout; auto tells it by the names of the files.")
    ] = "auto",
    kind: Annotated[
        Format, typer.Option("--format", help="How files are written; auto: by their names.")
    ] = "auto",
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=COLUMN", help="Column of user_id, item_id, …"),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="TOML file that says what the flags say.")
    ] = None,
    names: Annotated[
        str, typer.Option("--columns", metavar="A,B,…", help="Columns of a file without header.")
    ] = "",
    separator: Annotated[str, typer.Option(help="Between the fields of a line.")] = "",
    time_unit: Annotated[TimeUnit, typer.Option(help="Unit of times that are numbers.")] = "auto",
    event_type: Annotated[str, typer.Option(help="Type of events that name none.")] = "",
    from_table: Annotated[
        str, typer.Option("--table", metavar="NAME", help="Table of yours with the events.")
    ] = "",
    items_table: Annotated[
        str, typer.Option(metavar="NAME", help="Table of yours with the items.")
    ] = "",
    increasing: Annotated[
        str,
        typer.Option(metavar="COLUMN", help="Of --table: it grows with each new row, as ids do."),
    ] = "",
    rejects: Annotated[
        Path | None, typer.Option(help="CSV file for rejected rows; none: in the home folder.")
    ] = None,
    rebase_to_now: Annotated[
        bool,
        typer.Option(help="Shift all times by whole days so that the newest event is of today."),
    ] = False,
    again: Annotated[
        bool, typer.Option(help="Read files, or rows of a table, that were read before.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option(help="Show what would be read, and five rows; write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Load users, items and interactions; rows that are wrong are named, the others kept.

    CSV, TSV, ::-separated, JSONL and Parquet, plain or .gz, .xz, .zst. A load that was cut goes
    on where it stopped when the same command runs again.

    Example: shortlist load events/ --map user_id=uid --map occurred_at=ts
    """
    from features.errors import InputError

    wish = _wish(columns or [], mapping, names, separator, time_unit, event_type)
    if from_table or items_table or increasing:
        if path is not None or not from_table:
            raise InputError(
                "--table names the events, --items-table the items and --increasing a column of"
                " the events, not files"
            )
        for flag, given in (
            ("--dry-run", dry_run),
            ("--rebase-to-now", rebase_to_now),
            ("--rejects", rejects is not None),
            ("--columns", bool(wish.names)),
            ("--separator", bool(wish.separator)),
        ):
            if given:
                raise InputError(f"{flag} is for files, not for --table: leave it out")
        _load_table(from_table, items_table, wish, increasing, again, as_json)
        return
    if dry_run:
        from features.ingest.preview import preview

        found = preview(path if path is not None else "sample", preset, kind, wish)
        emit([asdict(file) for file in found]) if as_json else _show_preview(found)
        return
    from features import schema
    from features.ingest.load import load as load_into

    settings = context.settings()
    source = path if path is not None else "sample"
    name = "stdin" if source == "-" else Path(source).resolve().name
    rate = _Rate()
    with context.connected(settings) as connection, _progress(rate) as report:
        schema.apply(connection)
        result = load_into(
            connection,
            source,
            preset=preset,
            rebase_to_now=rebase_to_now,
            progress=report,
            kind=kind,
            wish=wish,
            rejects=rejects or settings.home / "rejects" / f"{name}.csv",
            again=again,
            on_rows=rate.add,
        )
    emit(asdict(result)) if as_json else _show(result, rate)


def _show(result: LoadReport, rate: _Rate) -> None:
    for file, line in result.resumed.items():
        ERR.print(f"{escape(file)}: went on at line {line:,}, where an earlier load stopped")
    for file in result.loaded_before:
        ERR.print(f"{escape(file)}: was loaded whole before, nothing to add (--again reads it)")
    speed = f" ({rate.rows / result.seconds:,.0f} rows/s)" if rate.rows else ""
    OUT.print(
        f"{result.users:,} users, {result.items:,} items, {result.interactions:,} interactions"
        f" in {seconds(result.seconds)}{speed}"
    )
    if result.already_loaded and not result.loaded_before:
        ERR.print(f"{result.already_loaded:,} events were there before")
    for row in result.rejects[:SHOWN_REJECTS]:
        ERR.print(f"  {escape(str(row.file))}:{row.line} {row.column}: {escape(row.reason)}")
    if result.rejected:
        more = result.rejected - min(len(result.rejects), SHOWN_REJECTS)
        rest = f" ({more:,} more)" if more else ""
        ERR.print(f"[yellow]{result.rejected:,} rows were not loaded{rest}[/]")
        if result.rejects_file:
            ERR.print(f"all of them: {escape(result.rejects_file)}", soft_wrap=True)


def _show_preview(files: list[Preview]) -> None:
    for file in files:
        rows = table(f"{file.file}: {file.format}{file.compression}", "", "column", "type")
        for role, (column, kind) in file.mapping.items():
            rows.add_row(role, escape(column), escape(kind))
        OUT.print(rows)
        OUT.print()
        names = ("user_id", "item_id", "event_type", "value", "occurred_at", "event_id")
        first = table("First rows as they would be stored", *names, right=("value",))
        for row in file.rows:
            first.add_row(*("" if row[name] is None else escape(str(row[name])) for name in names))
        OUT.print(first)
        for reject in file.rejects:
            ERR.print(
                f"  {escape(file.file)}:{reject.line} {reject.column}: {escape(reject.reason)}"
            )
        OUT.print()


def _load_table(
    events: str, items: str, wish: Wish, increasing: str, again: bool, as_json: bool
) -> None:
    from features import schema
    from features.ingest.tables import load_table

    with context.connected(context.settings()) as connection, progress() as report:
        schema.apply(connection)
        result = load_table(
            connection,
            events,
            items or None,
            wish,
            report,
            increasing=increasing or None,
            again=again,
        )
    if as_json:
        emit(asdict(result))
        return
    OUT.print(
        f"{result.users:,} users, {result.items:,} items, {result.interactions:,} interactions"
        f" of {result.read:,} rows in {seconds(result.seconds)}"
    )
    for reason, count in result.reasons.items():
        ERR.print(f"[yellow]{count:,} rows were not loaded[/]: {escape(reason)}")
    if result.left_out:
        ERR.print(f"{result.left_out:,} rows are of erased users, or of before raw events stay")
