"""What people see: tables on stdout, progress and errors on stderr, one JSON line for machines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text


class Report(Protocol):
    """What a long job reports to."""

    def __call__(self, step: str, done: int, total: int, detail: str = "", /) -> None:
        """Take a report: `total` is 0 where it is not known, `detail` a few words on the step."""


# Without a terminal rich takes 80 columns; so do we where a file or a pipe reads along.
OUT = Console(highlight=False, soft_wrap=False)
ERR = Console(stderr=True, highlight=False)

QUIET_SECONDS = 10.0
"""Without a terminal, a running step says where it is at most this often."""


def emit(value: object) -> None:
    """Write `value` to stdout as one line of strict JSON (no NaN, no infinity)."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")
    sys.stdout.flush()


def seconds(value: float) -> str:
    """Return a duration in seconds as people write it: ``0.4 s``, ``12 s``, ``3:05 min``."""
    if value < 9.95:
        return f"{value:.1f} s"
    if value < 59.5:
        return f"{value:.0f} s"
    return f"{int(value + 0.5) // 60}:{int(value + 0.5) % 60:02d} min"


class Headed(Table):
    """A table below a heading that may be wider than the table."""

    heading = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the heading, then the table."""
        yield Text(self.heading, "bold")
        yield from super().__rich_console__(console, options)


def table(
    heading: str,
    *columns: str,
    right: tuple[str, ...] = (),
    overflow: Literal["fold", "ellipsis"] = "fold",
) -> Headed:
    """Return an empty table in the house style.

    Parameters
    ----------
    heading : str
        Shown above it.
    *columns : str
        Their names.
    right : tuple of str
        Columns that are right-aligned and never cut.
    overflow : {"fold", "ellipsis"}
        What happens to a cell of the others that is wider than the terminal allows.
    """
    made = Headed(box=None, pad_edge=False)
    made.heading = heading
    for column in columns:
        if column in right:
            # The least width keeps short figures whole where a title could use the room.
            made.add_column(column, justify="right", no_wrap=True, min_width=2, header_style="dim")
        else:
            made.add_column(
                column, overflow=overflow, no_wrap=overflow == "ellipsis", header_style="dim"
            )
    return made


class _Lines:
    """Progress as plain lines: for logs, pipes and CI."""

    def __init__(self, console: Console, heading: str = "") -> None:
        self.console = console
        self.prefix = f"  {heading}: " if heading else "  "
        self.step = self.detail = ""
        self.started = self.spoken = time.monotonic()

    def __call__(self, step: str, done: int, total: int, detail: str = "", /) -> None:
        now = time.monotonic()
        if step != self.step:
            self.close()
            self.step, self.started, self.spoken = step, now, now
        self.detail = f" ({detail})" if detail else ""
        if now - self.spoken >= QUIET_SECONDS:
            self.spoken = now
            left = ""
            if total and done:
                left = f", about {seconds((now - self.started) / done * (total - done))} left"
            share = f" {done / total:.0%}" if total else ""
            after = f" after {seconds(now - self.started)}"
            self.console.print(
                f"{self.prefix}{step}{share}{after}{left}{self.detail}", soft_wrap=True
            )

    def close(self) -> None:
        took = time.monotonic() - self.started
        if self.step and took >= QUIET_SECONDS:
            done = f"{self.step} done after {seconds(took)}{self.detail}"
            self.console.print(f"{self.prefix}{done}", soft_wrap=True)
        self.step = ""


class _Bars:
    """Progress as bars with an estimate of the time left, one for each step."""

    def __init__(self, console: Console, heading: str = "") -> None:
        self.progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[detail]}[/]"),
            console=console,
            transient=True,
        )
        self.tasks: dict[str, TaskID] = {}
        if heading:
            self.progress.add_task(heading, total=None, detail="")
        self.progress.start()

    def __call__(self, step: str, done: int, total: int, detail: str = "", /) -> None:
        if step not in self.tasks:
            for earlier in self.tasks.values():
                self._finish(earlier)
            self.tasks[step] = self.progress.add_task(f"  {step}", total=None, detail="")
        self.progress.update(
            self.tasks[step], completed=done, total=total or None, detail=escape(detail)
        )

    def _finish(self, task: TaskID) -> None:
        for known in self.progress.tasks:
            if known.id == task and not known.finished:
                self.progress.update(task, total=known.total or 1, completed=known.total or 1)

    def close(self) -> None:
        self.progress.stop()


@contextmanager
def progress(console: Console = ERR, heading: str = "") -> Iterator[Report]:
    """Yield a :data:`Report` that draws bars on a terminal and writes lines elsewhere."""
    report = _Bars(console, heading) if console.is_terminal else _Lines(console, heading)
    try:
        yield report
    finally:
        report.close()


class Steps:
    """The steps of a long job: each shows its progress, then leaves one line with its time."""

    def __init__(self, console: Console = ERR) -> None:
        self.console = console
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str, label: str) -> Iterator[Report]:
        """Run one step; its duration is kept under `name`."""
        started = time.monotonic()
        try:
            with progress(self.console, label) as report:
                yield report
        except BaseException:
            self.console.print(f"[red]✗[/] {label}")
            raise
        self.seconds[name] = round(time.monotonic() - started, 3)
        took = seconds(self.seconds[name])
        self.console.print(f"[green]✓[/] {label:<58} [dim]{took:>9}[/]")

    def skip(self, name: str, label: str) -> None:
        """Say that a step had nothing to do."""
        self.seconds[name] = 0.0
        self.console.print(f"[green]✓[/] {label:<58} [dim]{'reused':>9}[/]")
