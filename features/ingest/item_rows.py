"""What a row of each kind of item file means."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from features.ids import ATTRIBUTE_LENGTH, id_problem
from features.ingest.rows import (
    ItemRow,
    RowError,
    genres,
    identifier,
    title,
    title_and_year,
    unix_seconds,
)
from features.real import is_float64

_ITEM_COLUMNS = ("item_id", "title", "categories", "created_at")


def _year_start(column: str, text: str) -> tuple[int | None, float | None]:
    if not text.strip():
        return None, None
    year = text.strip()
    if not (year.isdecimal() and len(year) <= 4 and int(year) >= 1):
        raise RowError(column, f"{text[:40]!r} is not a year")
    return int(year), datetime(int(year), 1, 1, tzinfo=UTC).timestamp()


def movie(id_column: str) -> Callable[[int, dict[str, str]], ItemRow]:
    """Return the parser of a MovieLens film: created on 1 January of its year."""

    def parse(line: int, row: dict[str, str]) -> ItemRow:
        if "year" in row:
            name = title("title", row["title"].strip())
            year, created = _year_start("year", row["year"])
        else:
            name, year = title_and_year("title", row["title"])
            year, created = _year_start("title", "" if year is None else str(year))
        return ItemRow(
            line,
            identifier(id_column, row[id_column]),
            name,
            genres("genres", row["genres"]),
            {} if year is None else {"year": year},
            created,
        )

    return parse


def movie_100k(flags: Sequence[str]) -> Callable[[int, dict[str, str]], ItemRow]:
    """Return the parser of a film of MovieLens 100K, with a column for each of its genres.

    It was created on its day of release, such as ``01-Jan-1995``.
    """

    def parse(line: int, row: dict[str, str]) -> ItemRow:
        name, year = title_and_year("title", row["title"])
        created = None
        if row["released"]:
            try:
                day = datetime.strptime(row["released"], "%d-%b-%Y").replace(tzinfo=UTC)
            except ValueError:
                shown = row["released"][:40]
                raise RowError("released", f"{shown!r} is not a day like 01-Jan-1995") from None
            created = day.timestamp()
        return ItemRow(
            line,
            identifier("movie", row["movie"]),
            name,
            [flag for flag in flags if row[flag] == "1" and flag != "unknown"],
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


def csv_item(line: int, row: dict[str, str]) -> ItemRow:
    """Return the item in `row`; columns that are not known become attributes."""
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
