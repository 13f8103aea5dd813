"""`shortlist features skew`: served features against the same computed again."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from serve.cli import context
from serve.cli.console import OUT, emit, table
from serve.cli.data import Json

if TYPE_CHECKING:
    from features.skew import SkewReport


EPILOG = "Example: shortlist features skew --since 2026-08-01"


def skew(
    since: Annotated[
        datetime | None,
        typer.Option(help="Only answers from this moment on, UTC.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most answers, the latest first.")] = 10_000,
    as_json: Json = False,
) -> None:
    """Compute the features of sampled answers again as of their time and compare.

    Exits with 1 when a value differs. Answers are sampled by `shortlist serve`
    (features.served_sample_rate).
    """
    from features import skew as job

    moment = since.replace(tzinfo=UTC) if since and since.tzinfo is None else since
    with context.connected(context.settings()) as connection:
        report = job.skew(connection, moment, limit)
    if as_json:
        emit(
            {
                "answers": report.answers,
                "other_spec": report.other_spec,
                "unknown_users": report.unknown,
                "without_snapshot": report.without_snapshot,
                "differing": report.differing,
                "features": [asdict(row) for row in report.features],
            }
        )
    else:
        _show(report)
    if report.differing:
        raise typer.Exit(1)


def _show(report: SkewReport) -> None:
    title = f"Served features computed again: {report.answers} sampled answers"
    right = ("compared", "differing", "largest difference")
    rows = table(title, "feature", *right, "example", right=right)
    for row in report.features:
        text = ""
        if row.example is not None:
            found = row.example
            item = "" if found.item_id is None else f", item {found.item_id!r}"
            text = (
                f"answer {found.rec_id}, user {found.user_id!r}{item}:"
                f" served {found.served:.7g}, now {found.recomputed:.7g}"
            )
        rows.add_row(
            row.feature,
            str(row.compared),
            f"[bold red]{row.differing}[/]" if row.differing else "0",
            f"{row.largest:.3g}",
            escape(text),
        )
    OUT.print(rows)
    for count, why in (
        (report.other_spec, "are of another version of the features"),
        (report.unknown, "are of users who are no longer in the database"),
        (report.without_snapshot, "have item features of no known refresh"),
    ):
        if count:
            OUT.print(f"{count} answers {why}: left out")
    if not report.answers:
        OUT.print("no answer was sampled: set features.served_sample_rate and serve some")
