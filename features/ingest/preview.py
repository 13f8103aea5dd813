"""What a load would do with each file: mapping, types and the first rows; nothing is written."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from typing import Any

from features.ingest.mapping import Format, Mapping, Preset, Wish
from features.ingest.presets import find_files
from features.ingest.readers import Reader, open_events
from features.ingest.rows import RejectedRow

ROWS = 5
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be read of one file.

    Attributes
    ----------
    file, format, compression : str
        Its name, and how it is written; `compression` is empty, ``.gz``, ``.xz`` or ``.zst``.
    mapping : dict of str to (str, str)
        For each part of an event: the column it comes from, and that column's type.
    rows : list of dict
        The first good events as they would be stored.
    rejects : list of RejectedRow
        The first rows that would be left out, of about as many lines.
    """

    file: str
    format: str
    compression: str
    mapping: dict[str, tuple[str, str]]
    rows: list[dict[str, Any]]
    rejects: list[RejectedRow]


def preview(
    source: Path | str, preset: Preset = "auto", kind: Format = "auto", wish: Wish | None = None
) -> list[Preview]:
    """Return what :func:`features.ingest.load.load` would do with each file of events.

    Raises
    ------
    InputError
        As there.
    """
    if source == "sample":
        with as_file(files("features") / "sample") as folder:
            return preview(folder, "movielens", kind, wish)
    found = []
    for file in find_files(Path(source), preset, kind, wish or Wish()).events:
        reader = open_events(file)
        try:
            rows, rejects = _first(reader)
        finally:
            reader.close()
        found.append(
            Preview(
                file.name, file.format, reader.compression, _roles(reader), rows, rejects[:ROWS]
            )
        )
    return found


def _roles(reader: Reader) -> dict[str, tuple[str, str]]:
    mapping: Mapping = reader.mapping
    found = {}
    for role in ("user_id", "item_id", "occurred_at", "value", "event_type", "event_id"):
        column = getattr(mapping, role)
        if column:
            found[role] = (column, reader.types[column])
    column, kind = found["occurred_at"]
    found["occurred_at"] = (column, f"{kind}, ISO 8601 or unix {_UNITS[mapping.time_unit]}")
    if not mapping.event_type:
        found["event_type"] = ("", f"always {mapping.default_type!r}")
    return found


def _first(reader: Reader) -> tuple[list[dict[str, Any]], list[RejectedRow]]:
    found: list[dict[str, Any]] = []
    rejects: list[RejectedRow] = []
    for piece in islice(reader.pieces(0, time.time()), 2):
        events = piece.events
        rejects += events.rejects
        for at in range(min(len(events.line), ROWS - len(found))):
            moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=int(events.moment[at]))
            found.append(
                {
                    "user_id": events.user.texts[events.user.codes[at]],
                    "item_id": events.item.texts[events.item.codes[at]],
                    "event_type": events.kind.texts[events.kind.codes[at]],
                    "value": float(events.value[at]) if events.has_value[at] else None,
                    "occurred_at": moment.isoformat(),
                    "event_id": None if events.event_id is None else events.event_id[at].as_py(),
                }
            )
        if len(found) == ROWS:
            break
    return found, sorted(rejects, key=lambda row: row.line)
