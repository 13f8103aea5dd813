"""The layouts that ``shortlist load`` knows by name, and the files of a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from features.errors import InputError
from features.ingest.item_rows import csv_item, movie, movie_100k
from features.ingest.lines import CSV, Layout
from features.ingest.mapping import Format, Preset, Wish
from features.ingest.rows import ItemRow
from features.ingest.streams import COMPRESSIONS

ItemParser = Callable[[int, dict[str, str]], ItemRow]

_SEPARATORS = {"csv": ",", "tsv": "\t", "dat": "::"}
_ENDINGS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".dat": "dat",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_ITEM_FILES = ("items", "movies")


@dataclass(frozen=True, slots=True)
class ItemFile:
    """A file of items: where, how it is written, what must be there, what a row means."""

    path: Path
    format: Format
    layout: Layout
    required: tuple[str, ...]
    parse: ItemParser


@dataclass(frozen=True, slots=True)
class EventFile:
    """A file of events, or standard input where `path` is None.

    What is no regular file, such as a pipe, can be read once only, as standard input can.
    """

    path: Path | None
    name: str
    format: Format
    layout: Layout
    wish: Wish
    value_required: bool = False

    @property
    def is_stream(self) -> bool:
        """It can be read once only, and nothing tells it from another."""
        return self.path is None or not self.path.is_file()


@dataclass(frozen=True, slots=True)
class DataSet:
    """The files of one data set, events in the order of their names."""

    events: list[EventFile]
    items: ItemFile | None


@dataclass(frozen=True, slots=True)
class _Known:
    """A published layout; `names` of columns where the files have no header."""

    events: str
    items: str
    layout: Layout
    wish: Wish
    value_required: bool
    item_layout: Layout
    item_required: tuple[str, ...]
    parse: ItemParser


_FLAGS = (
    *("unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime"),
    *("Documentary", "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery"),
    *("Romance", "Sci-Fi", "Thriller", "War", "Western"),
)
_RATING = ("user", "movie", "rating", "timestamp")
_KNOWN: dict[Preset, _Known] = {
    "movielens": _Known(
        "ratings.csv",
        "movies.csv",
        CSV,
        Wish(
            {"user_id": "userId", "item_id": "movieId", "value": "rating"}
            | {"occurred_at": "timestamp"},
            time_unit="s",
            event_type="rating",
        ),
        True,
        CSV,
        ("movieId", "title", "genres"),
        movie("movieId"),
    ),
    "ml-100k": _Known(
        "u.data",
        "u.item",
        Layout("\t"),
        Wish(names=_RATING, time_unit="s", event_type="rating"),
        True,
        Layout("|", "latin-1", ("movie", "title", "released", "video released", "link", *_FLAGS)),
        (),
        movie_100k(_FLAGS),
    ),
    "ml-1m": _Known(
        "ratings.dat",
        "movies.dat",
        Layout("::", "latin-1"),
        Wish(names=_RATING, time_unit="s", event_type="rating"),
        True,
        Layout("::", "latin-1", ("movie", "title", "genres")),
        (),
        movie("movie"),
    ),
    "csv": _Known("interactions.csv", "items.csv", CSV, Wish(), False, CSV, ("item_id",), csv_item),
}
# The same files, other sizes.
_ALIASES: dict[Preset, Preset] = {
    "ml-latest-small": "movielens",
    "ml-25m": "movielens",
    "ml-32m": "movielens",
}


def _unpacked(name: str) -> str:
    for ending in COMPRESSIONS[1:]:
        name = name.removesuffix(ending)
    return name


def _present(folder: Path, name: str) -> Path | None:
    paths = [folder / (name + ending) for ending in COMPRESSIONS]
    return next((path for path in paths if path.is_file()), None)


def _format_of(name: str) -> Format | None:
    return _ENDINGS.get(Path(_unpacked(name)).suffix.lower())


def _event_file(path: Path | None, name: str, kind: Format, wish: Wish) -> EventFile:
    separator = wish.separator or _SEPARATORS.get(kind, "")
    return EventFile(path, name, kind, Layout(separator, names=wish.names), wish)


def _known_set(name: Preset, events: Path, items: Path | None, wish: Wish) -> DataSet:
    known = _KNOWN[name]
    layout = known.layout
    # A user who names one column by hand leaves the others to their usual names.
    base = replace(known.wish, columns={}) if wish.columns else known.wish
    wish = wish.over(base)
    layout = Layout(wish.separator or layout.separator, layout.encoding, wish.names)
    file = EventFile(events, events.name, "csv", layout, wish, known.value_required)
    item_file = None
    if items is not None:
        item_file = ItemFile(items, "csv", known.item_layout, known.item_required, known.parse)
    return DataSet([file], item_file)


def _any_item_file(path: Path) -> ItemFile:
    kind = _format_of(path.name) or "csv"
    if _unpacked(path.name).startswith("movies."):
        known = _KNOWN["movielens"]
        return ItemFile(path, kind, known.item_layout, known.item_required, known.parse)
    return ItemFile(path, kind, Layout(_SEPARATORS.get(kind, "")), ("item_id",), csv_item)


def _any_set(folder: Path, kind: Format, wish: Wish) -> DataSet | None:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    items = None
    events = []
    for path in files:
        told = _format_of(path.name)
        if told is None or path.name.startswith((".", "_")):
            continue
        if _unpacked(path.name).split(".")[0] in _ITEM_FILES:
            items = items or _any_item_file(path)
        else:
            format_ = told if kind == "auto" else kind
            events.append(_event_file(path, path.name, format_, wish))
    return DataSet(events, items) if events else None


def find_files(source: Path, preset: Preset, kind: Format, wish: Wish) -> DataSet:
    """Return the files of `source`: a folder, a file of events, or ``-`` for standard input.

    Raises
    ------
    InputError
        There is no such file, it may not be looked at, or nothing tells how it is written.
    """
    try:
        return _find(source, preset, kind, wish)
    except PermissionError as error:
        raise InputError(
            f"source {str(source)!r}: {error.filename} cannot be looked at ({error.strerror});"
            " expected a file or folder that this user may read"
        ) from error


def _find(source: Path, preset: Preset, kind: Format, wish: Wish) -> DataSet:
    if str(source) == "-":
        if kind == "auto":
            raise InputError(
                "standard input has no name that tells its format: add --format"
                " csv|tsv|dat|jsonl|parquet"
            )
        return DataSet([_event_file(None, "stdin", kind, wish)], None)
    if not source.exists():
        raise InputError(
            f"source {str(source)!r}: no such file or folder; leave it out to load the sample"
        )
    wanted = _ALIASES.get(preset, preset)
    folder = source if source.is_dir() else source.parent
    for name, known in _KNOWN.items():
        if wanted not in ("auto", name) or (wanted == "auto" and kind != "auto"):
            continue
        found = _present(folder, known.events) if source.is_dir() else source
        by_name = found is not None and _unpacked(found.name) == known.events
        if found is not None and (by_name or wanted == name):
            return _known_set(name, found, _present(folder, known.items), wish)
    if wanted == "auto":
        if source.is_dir():
            any_set = _any_set(folder, kind, wish)
            if any_set is not None:
                return any_set
        else:
            told = _format_of(source.name) if kind == "auto" else kind
            if told is not None:
                beside = next(
                    (
                        path
                        for path in sorted(folder.iterdir())
                        if path != source
                        and _format_of(path.name) is not None
                        and _unpacked(path.name).split(".")[0] == "items"
                    ),
                    None,
                )
                items = None if beside is None else _any_item_file(beside)
                return DataSet([_event_file(source, source.name, told, wish)], items)
    names = ", ".join(row.events for key, row in _KNOWN.items() if wanted in ("auto", key))
    raise InputError(
        f"source {str(source)!r}: expected one of {names}"
        + (", or files named .csv, .tsv, .dat, .jsonl, .parquet" if wanted == "auto" else "")
        + ", plain or with .gz, .xz, .zst; --format says how another name is written"
    )
