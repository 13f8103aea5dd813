"""Which column of a file is what: said by the user, by a preset, or told by its usual names."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from features.errors import InputError
from features.ids import id_problem

Preset = Literal[
    "auto", "movielens", "ml-latest-small", "ml-100k", "ml-1m", "ml-25m", "ml-32m", "csv"
]
Format = Literal["auto", "csv", "tsv", "dat", "jsonl", "parquet"]
TimeUnit = Literal["auto", "s", "ms", "us"]

_USUAL: dict[str, tuple[str, ...]] = {
    "user_id": ("user_id", "user", "uid", "visitor_id", "customer_id", "account_id", "member_id"),
    "item_id": (
        *("item_id", "item", "movie_id", "movie", "product_id", "product", "sku", "asin", "iid"),
        *("parent_asin", "article_id", "book_id", "track_id", "content_id", "business_id"),
    ),
    "occurred_at": (
        *("occurred_at", "timestamp", "ts", "event_time", "time", "unix_review_time"),
        *("created_at", "datetime", "date"),
    ),
    "value": ("value", "rating", "score", "stars", "overall", "weight"),
    "event_type": ("event_type", "event", "action", "behavior", "behavior_type"),
    "event_id": ("event_id",),
}
REQUIRED = ("user_id", "item_id", "occurred_at")
_RATINGS = ("rating", "stars", "overall")
_LONGEST_NAME = 40
# Unix seconds reach this in the year 5138; milliseconds passed it in 1973, microseconds in 1970.
_NOT_SECONDS, _NOT_MILLISECONDS = 1e11, 1e14


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user says of a file; what is left open is told by names and values.

    Attributes
    ----------
    columns : dict of str to str
        For ``user_id``, ``item_id``, ``occurred_at``, ``value``, ``event_type``, ``event_id``:
        the name of the file's column.
    names : tuple of str
        Names of the columns of a file that has no header.
    separator : str
        Between the fields of a line; empty takes that of the format.
    time_unit : {"auto", "s", "ms", "us"}
        Unit of times that are numbers.
    event_type : str
        Type of events that name none; empty takes ``rating`` or ``interaction``.
    """

    columns: dict[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    separator: str = ""
    time_unit: TimeUnit = "auto"
    event_type: str = ""

    def __post_init__(self) -> None:
        """Refuse what no file can satisfy.

        Raises
        ------
        InputError
            An unknown name, unit or an impossible separator.
        """
        for name in self.columns:
            if name not in _USUAL:
                raise InputError(
                    f"mapping of {name!r}: expected one of {', '.join(_USUAL)}, as in"
                    " --map user_id=COLUMN"
                )
        if self.time_unit not in get_args(TimeUnit):
            raise InputError(f"time_unit is {self.time_unit!r}, expected auto, s, ms or us")
        if self.separator not in ("", "::") and (
            len(self.separator.encode()) != 1 or self.separator in '\n\r"'
        ):
            raise InputError(
                f"separator is {self.separator!r}, expected :: or one ASCII character, no quote"
            )
        problem = id_problem(self.event_type, 64) if self.event_type else None
        if problem is not None:
            raise InputError(f"event_type {self.event_type[:_LONGEST_NAME]!r} {problem}")

    def over(self, other: Wish) -> Wish:
        """Return what is said here, and by `other` where this says nothing."""
        return Wish(
            other.columns | self.columns,
            self.names or other.names,
            self.separator or other.separator,
            other.time_unit if self.time_unit == "auto" else self.time_unit,
            self.event_type or other.event_type,
        )


def read_wish(path: Path) -> Wish:
    """Return the mapping in a TOML file: table ``columns``, and the other names of `Wish`.

    Raises
    ------
    InputError
        It cannot be read, or holds a name or type that is not expected.
    """
    try:
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"mapping {str(path)!r}: cannot be read ({error})") from error
    known = [entry.name for entry in fields(Wish)]
    for name, value in found.items():
        if name not in known:
            raise InputError(f"mapping {path.name}: {name!r} is none of {', '.join(known)}")
        texts = value
        if name == "columns":
            texts = list(value.values()) if isinstance(value, dict) else None
        elif name != "names":
            texts = [value]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"mapping {path.name}: {name} is {value!r}, expected"
                f" {'a table of texts' if name == 'columns' else 'text'}"
            )
    if "names" in found:
        found["names"] = tuple(found["names"])
    return Wish(**found)


@dataclass(frozen=True, slots=True)
class Mapping:
    """Where each part of an event stands; `event_type` and what follows may be nowhere."""

    user_id: str
    item_id: str
    occurred_at: str
    value: str | None = None
    event_type: str | None = None
    event_id: str | None = None
    default_type: str = "interaction"
    value_required: bool = False
    time_unit: str = "auto"

    @property
    def columns(self) -> list[str]:
        """The columns of the file that are read."""
        found = [self.user_id, self.item_id, self.occurred_at]
        return found + [name for name in (self.value, self.event_type, self.event_id) if name]

    def with_unit(self, times: Iterable[str]) -> Mapping:
        """Return the mapping with its unit of time settled by some `times` of the file."""
        if self.time_unit != "auto":
            return self
        numbers = sorted(abs(number) for number in map(_number, times) if number is not None)
        middle = numbers[len(numbers) // 2] if numbers else 0.0
        unit = "s" if middle < _NOT_SECONDS else "ms" if middle < _NOT_MILLISECONDS else "us"
        return replace(self, time_unit=unit)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def resolve(file: str, columns: Sequence[str], wish: Wish, value_required: bool = False) -> Mapping:
    """Return where each part of an event stands in `columns`.

    Raises
    ------
    InputError
        A required column, or one that the user named, is not there.
    """
    shown = ", ".join(columns)[:200]
    by_name = {_plain(name): name for name in reversed(columns)}
    found: dict[str, str] = {}
    for role, usual in _USUAL.items():
        if role in wish.columns:
            if wish.columns[role] not in columns:
                raise InputError(
                    f"{file} line 1: column {wish.columns[role]!r}, named as {role}, is missing,"
                    f" found {shown!r}"
                )
            found[role] = wish.columns[role]
            continue
        taken = set(wish.columns.values()) | set(found.values())
        name = next((by_name[_plain(name)] for name in usual if _plain(name) in by_name), None)
        if name is not None and name not in taken:
            found[role] = name
        elif role in REQUIRED:
            raise InputError(
                f"{file} line 1: column {role!r} is missing, found {shown!r}; expected"
                f" {', '.join(REQUIRED)} or usual names of them; name yours with"
                f" --map {role}=COLUMN"
            )
    rated = _plain(found.get("value", "")) in _RATINGS
    return Mapping(
        **found,
        default_type=wish.event_type or ("rating" if rated else "interaction"),
        value_required=value_required,
        time_unit=wish.time_unit,
    )
