"""`shortlist features skew`: served features against the same computed again."""

from __future__ import annotations

import math
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
                "before_erasure": report.before_erasure,
                "differing": report.differing,
                "features": [_finite(asdict(row)) for row in report.features],
            }
        )
    else:
        _show(report)
    if report.differing:
        raise typer.Exit(1)


def _finite(value: object) -> object:
    """Return `value` with null for a number that is missing or infinite: JSON has neither."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show(report: SkewReport) -> None:
    title = f"Served features of {report.answers} sampled answers computed again"
    numbers = ("compared", "differing", "largest")
    rows = table(title, "feature", *numbers, right=numbers)
    for row in report.features:
        differing = f"[bold red]{row.differing}[/]" if row.differing else "0"
        rows.add_row(row.feature, str(row.compared), differing, f"{row.largest:.3g}")
    OUT.print(rows)
    for row in report.features:
        found = row.example
        if found is not None:
            item = "" if found.item_id is None else f", item {found.item_id!r}"
            text = (
                f"{row.feature}: served {found.served:.7g}, computed again {found.recomputed:.7g}"
                f" (answer {found.rec_id}, user {found.user_id!r}{item})"
            )
            OUT.print(escape(text))
    for count, why in (
        (report.other_spec, "are of another version of the features: left out"),
        (report.unknown, "are of users who are no longer in the database: left out"),
        (report.without_snapshot, "have item features of no known refresh: these are left out"),
        (report.before_erasure, "have item features from before an erasure: these are left out"),
    ):
        if count:
            OUT.print(f"{count} answers {why}")
    if not report.answers:
        OUT.print("no answer was sampled: set features.served_sample_rate and serve some")
