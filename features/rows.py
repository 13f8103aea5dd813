"""Read item and event files row by row; what is wrong with a row is said, not raised.

Layouts: ``movielens`` (``ratings.csv``, ``movies.csv``), ``ml-1m`` (``ratings.dat``,
``movies.dat``, ``::`` between fields, Latin-1), ``csv`` (``interactions.csv``, ``items.csv``).
"""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Literal, NamedTuple

from features.errors import InputError
from features.ids import CATEGORIES, TITLE_LENGTH, id_problem
from features.real import is_float32, is_moment, to_float32

_FUTURE_S = 300.0
_LONGEST_VALUE = 40
_NO_GENRES = "(no genres listed)"
_TITLE_YEAR = re.compile(r"\s*\((\d{4})\)\s*$")
# A quoted title may span lines, but one forgotten quote must not swallow the file.
_LINES_A_ROW = 50

Reads = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """A row that was left out: where it is, which column, and why.

    `line` is 1-based and counts the header; `column` is empty when the whole row is wrong.
    """

    file: str
    line: int
    column: str
    reason: str


class EventRow(NamedTuple):
    """One event of a file; `moment` in microseconds since 1970."""

    line: int
    user_id: str
    item_id: str
    event_type: str
    value: float | None
    moment: int
    event_id: str | None


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One item of a file; `created` in unix seconds."""

    line: int
    item_id: str
    title: str | None
    categories: list[str] = field(default_factory=list)
    attributes: dict[str, str | int | float | bool] = field(default_factory=dict)
    created: float | None = None


class RowError(Exception):
    """A row is wrong; `column` says where."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.column = column
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Layout:
    """How one kind of file is written."""

    separator: Literal[",", "::"]
    encoding: str
    columns: tuple[str, ...] | None  # None: the first line names them
    is_multiline: bool = False  # a quoted field may hold line ends


CSV = Layout(",", "utf-8", None)
CSV_TEXTS = Layout(",", "utf-8", None, is_multiline=True)
ML_1M_RATINGS = Layout("::", "latin-1", ("user", "movie", "rating", "timestamp"))
ML_1M_MOVIES = Layout("::", "latin-1", ("movie", "title", "genres"))


def _open(path: Path) -> tuple[IO[bytes], IO[bytes]]:
    """Return the decompressed stream and the one on disk, whose position measures progress."""
    raw = path.open("rb")
    if path.suffix == ".xz":
        return io.BufferedReader(lzma.LZMAFile(raw)), raw
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=raw)), raw
    return raw, raw


def _lines(path: Path, encoding: str, reads: Reads) -> Iterator[tuple[int, str]]:
    """Yield line number and text; bytes that do not decode stay as lone surrogates."""
    stream, raw = _open(path)
    with raw, stream:
        try:
            for number, line in enumerate(stream, start=1):
                if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                    line = line[3:]
                if number % 4096 == 0:
                    reads(raw.tell())
                yield number, line.decode(encoding, "surrogateescape").rstrip("\r\n")
        except (lzma.LZMAError, EOFError, gzip.BadGzipFile) as error:
            raise InputError(
                f"{path.name}: the compressed file is damaged ({error}); nothing was loaded"
            ) from error


def _split(text: str, separator: str) -> list[str]:
    if separator == "::":
        return text.split("::")
    if '"' not in text:
        return text.split(",")
    return next(csv.reader(io.StringIO(text, newline=""), strict=True))


def _join_quoted(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join the lines of a row whose quotes are still open."""
    waiting: list[tuple[int, str]] = []
    while True:
        found = waiting.pop(0) if waiting else next(lines, None)
        if found is None:
            return
        number, text = found
        if text.count('"') % 2:
            parts = [text]
            taken: list[tuple[int, str]] = []
            while len(taken) < _LINES_A_ROW:
                following = waiting.pop(0) if waiting else next(lines, None)
                if following is None:
                    break
                taken.append(following)
                parts.append(following[1])
                if following[1].count('"') % 2:
                    text = "\n".join(parts)
                    taken = []
                    break
            waiting = taken + waiting
        yield number, text


def _check_names(path: Path, columns: list[str]) -> None:
    """Refuse a header whose names cannot be told apart or stored; one may have no name."""
    for position, name in enumerate(columns, start=1):
        problem = id_problem(name) if name else None
        if problem is None and name and name in columns[: position - 1]:
            problem = "stands on an earlier column too"
        if problem is not None:
            raise InputError(
                f"{path.name} line 1: column {position}, {name[:_LONGEST_VALUE]!r}, {problem}:"
                " give each column a name of its own in UTF-8"
            )


def records(
    path: Path, layout: Layout, required: tuple[str, ...], reject: list[RejectedRow], reads: Reads
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield line number and fields by column of each row that has as many as the header.

    Raises
    ------
    InputError
        The file is empty, damaged or lacks a required column.
    """
    lines = _lines(path, layout.encoding, reads)
    if layout.is_multiline:
        lines = _join_quoted(lines)
    columns = list(layout.columns or ())
    if not columns:
        header = next(lines, None)
        if header is None or not header[1].strip():
            raise InputError(
                f"{path.name} line 1: the file is empty, expected a header with the columns"
                f" {', '.join(required)}"
            )
        columns = [name.strip() for name in _split(header[1], layout.separator)]
        _check_names(path, columns)
        missing = [name for name in required if name not in columns]
        if missing:
            raise InputError(
                f"{path.name} line 1: column {missing[0]!r} is missing, found"
                f" {', '.join(columns)[:200]!r}; expected {', '.join(required)}"
            )
    for number, text in lines:
        if not text:
            continue
        try:
            values = _split(text, layout.separator)
        except (csv.Error, StopIteration) as error:
            reject.append(RejectedRow(path.name, number, "", f"broken quotes: {error}"))
            continue
        if len(values) != len(columns):
            reason = f"has {len(values)} fields, expected {len(columns)}"
            reject.append(RejectedRow(path.name, number, "", reason))
            continue
        yield number, dict(zip(columns, values, strict=True))


def identifier(column: str, text: str) -> str:
    """Return `text` if it can be an id.

    Raises
    ------
    RowError
        It cannot.
    """
    problem = id_problem(text)
    if problem is not None:
        raise RowError(column, problem)
    return text


def number(column: str, text: str) -> float | None:
    """Return the finite number in `text`, None if it is empty.

    Raises
    ------
    RowError
        It is no number, not finite, or larger than a 32-bit float holds.
    """
    if not text:
        return None
    try:
        value = _float(text)
    except ValueError:
        raise RowError(column, f"{text[:_LONGEST_VALUE]!r} is not a number") from None
    if not is_float32(value):
        raise RowError(column, f"{text[:_LONGEST_VALUE]!r} is not a finite 32-bit number")
    return to_float32(value)


def _float(text: str) -> float:
    """Return the number in `text`; unlike Python's literals, none has underscores."""
    if "_" in text:
        raise ValueError(text)
    return float(text)


def unix_seconds(column: str, text: str) -> float:
    """Return the time in `text`: unix seconds, or ISO 8601 (UTC unless it says otherwise).

    Raises
    ------
    RowError
        It is no time or lies outside the years 1 to 9999.
    """
    try:
        seconds = _float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            shown = text[:_LONGEST_VALUE]
            raise RowError(
                column, f"{shown!r} is not a time: expected unix seconds or ISO 8601"
            ) from None
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    if not is_moment(seconds):
        hint = " (milliseconds? expected seconds)" if seconds > 0 else ""
        shown = text[:_LONGEST_VALUE]
        raise RowError(column, f"{shown!r} is no time of the years 1 to 9999{hint}")
    return seconds


def event_seconds(column: str, text: str, now: float) -> float:
    """Return the time of an event in `text`, as :func:`unix_seconds` reads it.

    Raises
    ------
    RowError
        It is no time, lies before 1970 or more than five minutes after `now`.
    """
    seconds = unix_seconds(column, text)
    if seconds < 0:
        raise RowError(column, f"{text[:_LONGEST_VALUE]!r} lies before 1970")
    if seconds > now + _FUTURE_S:
        raise RowError(column, f"{text[:_LONGEST_VALUE]!r} lies in the future")
    return seconds


def title(column: str, text: str) -> str | None:
    """Return a title, None if there is none.

    Raises
    ------
    RowError
        It is too long, or PostgreSQL cannot store it.
    """
    problem = id_problem(text, TITLE_LENGTH) if text else None
    if problem is not None:
        raise RowError(column, problem)
    return text or None


def genres(column: str, text: str) -> list[str]:
    """Return the names between ``|``, without doubles, in their order.

    Raises
    ------
    RowError
        There are too many, or one cannot be the name of a category.
    """
    found = dict.fromkeys(name.strip() for name in text.split("|"))
    names = [name for name in found if name and name != _NO_GENRES]
    if len(names) > CATEGORIES:
        raise RowError(column, f"has {len(names)} names, at most {CATEGORIES} are allowed")
    for name in names:
        problem = id_problem(name)
        if problem is not None:
            raise RowError(column, f"a name {problem}")
    return names


def title_and_year(column: str, text: str) -> tuple[str | None, int | None]:
    """Split ``Toy Story (1995)`` into title and year; either may be missing."""
    whole = text.strip()
    match = _TITLE_YEAR.search(whole)
    if match is None or int(match.group(1)) == 0:
        return title(column, whole), None
    return title(column, whole[: match.start()]), int(match.group(1))
