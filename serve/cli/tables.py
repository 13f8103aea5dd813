"""Readable tables of answers, stage timings and evaluations; they fit into 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from serve.cli.console import table

if TYPE_CHECKING:
    from ranking.evaluation.result import EvaluationResult

BAR = 32
TITLE = 34
# What 80 columns leave beside place, title, score and the gaps between them.
SOURCES = 32


def liked_table(user_id: str, liked: Sequence[tuple[str, float | None]]) -> Table:
    """Return the titles a user liked: (title, value) rows, best first."""
    rows = table(f"User {user_id} liked", "title", "value", right=("value",))
    for title, value in liked:
        rows.add_row(_short(title), "" if value is None else f"{value:g}")
    return rows


def recommended_table(answer: Mapping[str, Any], user_id: str) -> Group:
    """Return the items of a recommendation answer with score and sources, and its notes."""
    rows = table(
        f"Recommended to user {user_id}",
        *("#", "title", "score", "found by (at place)"),
        right=("#", "score"),
        overflow="ellipsis",
    )
    for place, item in enumerate(answer["items"], 1):
        title = str((item.get("fields") or {}).get("title") or item["id"])
        best_first = sorted(item["sources"], key=lambda hit: int(hit["rank"]))
        sources = _found_by([f"{hit['name']} {hit['rank'] + 1}" for hit in best_first])
        score = "" if item["score"] is None else f"{item['score']:.3f}"
        rows.add_row(str(place), _short(title), score, escape(sources))
    notes = [Text(f"{note['code']}: {note['detail']}", "yellow") for note in answer["notes"]]
    return Group(rows, *notes)


def _found_by(sources: list[str]) -> str:
    """Join sources; those that do not fit are left out whole, since half a number is another."""
    shown = ""
    for number, source in enumerate(sources):
        longer = f"{shown}, {source}" if shown else source
        rest = ", …" if number + 1 < len(sources) else ""
        if len(longer + rest) > SOURCES:
            return f"{shown}, …"
        shown = longer
    return shown


def _short(title: str) -> str:
    return escape(title if len(title) <= TITLE else title[: TITLE - 1] + "…")


def waterfall(
    timing_ms: Mapping[str, float], total_ms: float, title: str, explained: float | None = None
) -> Table:
    """Return the stages as bars, each beginning where the one before it ends.

    Parameters
    ----------
    timing_ms : mapping of str to float
        Milliseconds of each stage in the order of the pipeline, without the total.
    total_ms : float
        What the server measured for the whole request.
    title : str
        Heading.
    explained : float, optional
        Share of the total that the stages explain, where it is not that of these figures:
        medians of stages do not add up to the median of their sum.
    """
    rows = table(title, "stage", "ms", "share", "", right=("ms", "share"))
    scale = max(total_ms, sum(timing_ms.values()), 1e-9)
    begun = 0.0
    for stage, took in timing_ms.items():
        rows.add_row(stage, f"{took:.2f}", f"{took / scale:.0%}", _bar(begun, took, scale))
        begun += took
    each = "" if explained is None else "in each request, "
    if explained is None:
        explained = sum(timing_ms.values()) / total_ms if total_ms else 1.0
    rows.add_row("total", f"{total_ms:.2f}", "", f"[dim]{each}stages explain {explained:.1%}[/]")
    return rows


def _bar(begun: float, took: float, scale: float) -> Text:
    """Return one bar, to an eighth of a character."""
    left = int(begun / scale * BAR)
    eighths = max(1, round(took / scale * BAR * 8))
    full, part = divmod(eighths, 8)
    return Text(" " * left + "█" * full + ("", *"▏▎▍▌▋▊▉")[part], "cyan")


def evaluation_table(result: EvaluationResult) -> Table:
    """Return every model beside the others, means with 95% intervals."""
    columns = {"NDCG@10": "ndcg_at_10", "HR@10": "hr_at_10", "recall@200": "recall_at_200"}
    rows = table(
        f"Evaluation: {result.protocol}, {result.test_users:,} users",
        "model",
        *columns,
        right=tuple(columns),
    )
    # Baselines first, so that the eye goes down to what is served.
    for figures in sorted(result.models.values(), key=lambda figures: figures.stage):
        cells = []
        for metric in columns.values():
            estimate = figures.metrics[metric]
            cells.append(f"{estimate.mean:.3f} [dim]{estimate.low:.3f}-{estimate.high:.3f}[/]")
        style = "bold" if figures.stage == "cascade" else None
        rows.add_row(escape(figures.label), *cells, style=style)
    return rows
