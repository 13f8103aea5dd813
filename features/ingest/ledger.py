"""Where the load of each file stands: table ``loads``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from features.errors import InputError

LOCK = "select pg_advisory_xact_lock(hashtextextended('shortlist.load', 0))"
"""One block at a time is stored, and no user is erased meanwhile."""

_ENDS = 1 << 20


def fingerprint(path: Path, what: str) -> str:
    """Return what tells this file and this reading of it (`what`) from others.

    That is its name, its size, and the hash of its first and last megabyte.
    """
    found = hashlib.sha256(f"{path.name}\n{what}\n".encode())
    size = path.stat().st_size
    found.update(str(size).encode())
    with path.open("rb") as stream:
        found.update(stream.read(_ENDS))
        stream.seek(max(0, size - _ENDS))
        found.update(stream.read(_ENDS))
    return found.hexdigest()


@dataclass(slots=True)
class Entry:
    """The load of one file.

    Attributes
    ----------
    load_id : int
        Key in the table; 0 for standard input, of which no run can go on.
    name : str
        Of the file.
    rows_done : int
        Lines or rows from its start that are dealt with.
    interactions : int
        Those that were stored.
    shifted_days : int
        Days by which its times are moved.
    is_finished : bool
        It was loaded to its end.
    """

    load_id: int
    name: str
    rows_done: int = 0
    interactions: int = 0
    shifted_days: int = 0
    is_finished: bool = False


def find(connection: psycopg.Connection[Any], name: str, mark: str) -> Entry | None:
    """Return what is known of the file with that fingerprint."""
    row = connection.execute(
        "select load_id, rows_done, interactions, shifted_days, finished_at is not null"
        " from loads where fingerprint = %s",
        [mark],
    ).fetchone()
    return None if row is None else Entry(row[0], name, row[1], row[2], row[3], row[4])


def begin(connection: psycopg.Connection[Any], name: str, mark: str, days: int) -> Entry:
    """Record that the load of a file begins, from its start."""
    row = connection.execute(
        "insert into loads (source, fingerprint, shifted_days) values (%s, %s, %s)"
        " on conflict (fingerprint) do update set rows_done = 0, interactions = 0, rejected = 0,"
        " shifted_days = excluded.shifted_days, started_at = now(), finished_at = null"
        " returning load_id",
        [name, mark, days],
    ).fetchone()
    assert row is not None
    return Entry(row[0], name, shifted_days=days)


def advance(
    connection: psycopg.Connection[Any], entry: Entry, rows_done: int, stored: int, rejected: int
) -> None:
    """Record a block in the transaction that stores it.

    Raises
    ------
    InputError
        Another load of the same file is at work.
    """
    if not entry.load_id:
        return
    cursor = connection.execute(
        "update loads set rows_done = %s, interactions = interactions + %s,"
        " rejected = rejected + %s where load_id = %s and rows_done = %s",
        [rows_done, stored, rejected, entry.load_id, entry.rows_done],
    )
    if cursor.rowcount != 1:
        raise InputError(
            f"{entry.name}: another load of this file is at work, beyond line {entry.rows_done};"
            " wait for it, or stop it and run this again"
        )


def finish(connection: psycopg.Connection[Any], entry: Entry) -> None:
    """Record that a file was loaded to its end."""
    connection.execute("update loads set finished_at = now() where load_id = %s", [entry.load_id])
