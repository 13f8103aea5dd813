"""One row at a time: what may stand in it, and what exactly is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping as Fields
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

from features.ids import CATEGORIES, EVENT_TYPE_LENGTH, TITLE_LENGTH, id_problem
from features.ingest.mapping import Mapping
from features.real import is_float32, is_moment, to_float32

FUTURE_S = 300.0
"""An event may lie this many seconds ahead: clocks differ."""

_LONGEST_VALUE = 40
_NO_GENRES = "(no genres listed)"
_TITLE_YEAR = re.compile(r"\s*\((\d{4})\)\s*$")
_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6}
_OTHER_UNIT = {"s": "milliseconds", "ms": "microseconds", "us": "nanoseconds"}
_UNIT_NAME = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}


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


def unix_seconds(column: str, text: str, unit: str = "s") -> float:
    """Return the time in `text`: unix time in `unit`, or ISO 8601 (UTC unless it says otherwise).

    Raises
    ------
    RowError
        It is no time or lies outside the years 1 to 9999.
    """
    try:
        seconds = _float(text) / _PER_SECOND[unit]
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            shown = text[:_LONGEST_VALUE]
            raise RowError(
                column,
                f"{shown!r} is not a time: expected unix {_UNIT_NAME[unit]} or ISO 8601",
            ) from None
        seconds = moment.replace(tzinfo=moment.tzinfo or UTC).timestamp()
    if not is_moment(seconds):
        hint = f" ({_OTHER_UNIT[unit]}? expected {_UNIT_NAME[unit]})" if seconds > 0 else ""
        shown = text[:_LONGEST_VALUE]
        raise RowError(column, f"{shown!r} is no time of the years 1 to 9999{hint}")
    return seconds


def event_seconds(column: str, text: str, now: float, unit: str = "s") -> float:
    """Return the time of an event in `text`, as :func:`unix_seconds` reads it.

    Raises
    ------
    RowError
        It is no time, lies before 1970 or more than five minutes after `now`.
    """
    seconds = unix_seconds(column, text, unit)
    if seconds < 0:
        raise RowError(column, f"{text[:_LONGEST_VALUE]!r} lies before 1970")
    if seconds > now + FUTURE_S:
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


def event(mapping: Mapping, line: int, row: Fields[str, str], now: float) -> EventRow:
    """Return the event in `row`, whose fields are named as in the file.

    Raises
    ------
    RowError
        A field is wrong: the first in the order type, user, item, value, time, id.
    """
    kind = (row[mapping.event_type] if mapping.event_type else "") or mapping.default_type
    problem = id_problem(kind, EVENT_TYPE_LENGTH)
    if problem is not None:
        raise RowError(mapping.event_type or "event_type", problem)
    value = number(mapping.value, row[mapping.value]) if mapping.value else None
    if value is None and mapping.value and mapping.value_required:
        raise RowError(mapping.value, "is empty")
    user = identifier(mapping.user_id, row[mapping.user_id])
    item = identifier(mapping.item_id, row[mapping.item_id])
    seconds = event_seconds(mapping.occurred_at, row[mapping.occurred_at], now, mapping.time_unit)
    event_id = row[mapping.event_id] if mapping.event_id else ""
    if event_id and mapping.event_id:
        identifier(mapping.event_id, event_id)
    return EventRow(line, user, item, kind, value, round(seconds * 1e6), event_id or None)
