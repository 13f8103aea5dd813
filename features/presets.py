"""The layouts that ``shortlist load`` knows: which files, which columns, what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from features.errors import InputError
from features.ids import ATTRIBUTE_LENGTH, EVENT_TYPE_LENGTH, id_problem
from features.real import is_float64
from features.rows import (
    CSV,
    CSV_TEXTS,
    ML_1M_MOVIES,
    ML_1M_RATINGS,
    EventRow,
    ItemRow,
    Layout,
    Reads,
    RejectedRow,
    RowError,
    event_seconds,
    genres,
    identifier,
    number,
    records,
    title,
    title_and_year,
    unix_seconds,
)

Preset = Literal["auto", "movielens", "ml-1m", "csv"]
Fields = dict[str, str]
_COMPRESSIONS = ("", ".xz", ".gz")
_ITEM_COLUMNS = ("item_id", "title", "categories", "created_at")


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one data set and how to read a row of each."""

    preset: Preset
    events: Path
    items: Path | None


def _present(folder: Path, name: str) -> Path | None:
    for ending in _COMPRESSIONS:
        path = folder / (name + ending)
        if path.is_file():
            return path
    return None


_NAMES: dict[Preset, tuple[str, str]] = {
    "movielens": ("ratings.csv", "movies.csv"),
    "ml-1m": ("ratings.dat", "movies.dat"),
    "csv": ("interactions.csv", "items.csv"),
}


def find_source(source: Path, preset: Preset) -> Source:
    """Return the files of `source`, a folder or a file of events.

    Raises
    ------
    InputError
        There is no such file, or its name fits no preset.
    """
    if not source.exists():
        raise InputError(
            f"source {str(source)!r}: no such file or folder; leave it out to load the sample"
        )
    folder = source if source.is_dir() else source.parent
    for name, (events, items) in _NAMES.items():
        if preset not in ("auto", name):
            continue
        found = _present(folder, events) if source.is_dir() else source
        if found is None:
            continue
        if not source.is_dir() and preset == "auto" and name != "csv":
            plain = source.name.removesuffix(".xz").removesuffix(".gz")
            if plain != events:
                continue
        return Source(name, found, _present(folder, items))
    expected = ", ".join(names[0] for key, names in _NAMES.items() if preset in ("auto", key))
    raise InputError(f"source {str(source)!r}: expected one of {expected}, plain, .xz or .gz")


def _rating(
    columns: tuple[str, str, str, str],
) -> Callable[[int, Fields, float], EventRow]:
    user, item, rating, timestamp = columns

    def parse(line: int, row: Fields, now: float) -> EventRow:
        value = number(rating, row[rating])
        if value is None:
            raise RowError(rating, "is empty")
        moment = round(event_seconds(timestamp, row[timestamp], now) * 1e6)
        return EventRow(
            line,
            identifier(user, row[user]),
            identifier(item, row[item]),
            "rating",
            value,
            moment,
            None,
        )

    return parse


def _interaction(line: int, row: Fields, now: float) -> EventRow:
    event_type = row.get("event_type") or "interaction"
    problem = id_problem(event_type, EVENT_TYPE_LENGTH)
    if problem is not None:
        raise RowError("event_type", problem)
    event_id = row.get("event_id") or None
    return EventRow(
        line,
        identifier("user_id", row["user_id"]),
        identifier("item_id", row["item_id"]),
        event_type,
        number("value", row.get("value", "")),
        round(event_seconds("occurred_at", row["occurred_at"], now) * 1e6),
        identifier("event_id", event_id) if event_id is not None else None,
    )


def _year_start(column: str, text: str) -> tuple[int | None, float | None]:
    if not text.strip():
        return None, None
    year = text.strip()
    if not (year.isdecimal() and len(year) <= 4 and int(year) >= 1):
        raise RowError(column, f"{text[:40]!r} is not a year")
    return int(year), datetime(int(year), 1, 1, tzinfo=UTC).timestamp()


def _movie(columns: tuple[str, str, str]) -> Callable[[int, Fields, float], ItemRow]:
    item, title_column, genre_column = columns

    def parse(line: int, row: Fields, now: float) -> ItemRow:
        if "year" in row:
            name = title(title_column, row[title_column].strip())
            year, created = _year_start("year", row["year"])
        else:
            name, year = title_and_year(title_column, row[title_column])
            year, created = _year_start(title_column, "" if year is None else str(year))
        return ItemRow(
            line,
            identifier(item, row[item]),
            name,
            genres(genre_column, row[genre_column]),
            {} if year is None else {"year": year},
            created,
        )

    return parse


def _attribute(column: str, text: str) -> str | int | float | bool:
    """Return a number or truth value where the text is one, else the text."""
    problem = id_problem(text, ATTRIBUTE_LENGTH)
    if problem is not None:
        raise RowError(column, problem)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, int | float) and is_float64(value) else text


def _item(line: int, row: Fields, now: float) -> ItemRow:
    created = row.get("created_at", "")
    attributes = {
        name: _attribute(name, text)
        for name, text in row.items()
        if name and name not in _ITEM_COLUMNS and text
    }
    return ItemRow(
        line,
        identifier("item_id", row["item_id"]),
        title("title", row.get("title", "")),
        genres("categories", row.get("categories", "")),
        attributes,
        unix_seconds("created_at", created) if created else None,
    )


_EVENTS: dict[Preset, tuple[Layout, tuple[str, ...], Callable[[int, Fields, float], EventRow]]] = {
    "movielens": (
        CSV,
        ("userId", "movieId", "rating", "timestamp"),
        _rating(("userId", "movieId", "rating", "timestamp")),
    ),
    "ml-1m": (ML_1M_RATINGS, (), _rating(("user", "movie", "rating", "timestamp"))),
    "csv": (CSV, ("user_id", "item_id", "occurred_at"), _interaction),
}
_ITEMS: dict[Preset, tuple[Layout, tuple[str, ...], Callable[[int, Fields, float], ItemRow]]] = {
    "movielens": (
        CSV_TEXTS,
        ("movieId", "title", "genres"),
        _movie(("movieId", "title", "genres")),
    ),
    "ml-1m": (ML_1M_MOVIES, (), _movie(("movie", "title", "genres"))),
    "csv": (CSV_TEXTS, ("item_id",), _item),
}


def read_items(
    source: Source, now: float, reject: list[RejectedRow], reads: Reads
) -> Iterator[ItemRow]:
    """Yield the items of `source`; rows that are wrong go to `reject`."""
    if source.items is None:
        return
    layout, required, parse = _ITEMS[source.preset]
    for line, row in records(source.items, layout, required, reject, reads):
        try:
            yield parse(line, row, now)
        except RowError as error:
            reject.append(RejectedRow(source.items.name, line, error.column, error.reason))


def read_events(
    source: Source, now: float, reject: list[RejectedRow], reads: Reads
) -> Iterator[EventRow]:
    """Yield the events of `source`; rows that are wrong go to `reject`."""
    layout, required, parse = _EVENTS[source.preset]
    for line, row in records(source.events, layout, required, reject, reads):
        try:
            yield parse(line, row, now)
        except RowError as error:
            reject.append(RejectedRow(source.events.name, line, error.column, error.reason))
