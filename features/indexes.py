"""Indexes that a first load does without: to build them at its end costs less than to keep them up.

Their definitions stay in ``sql/04_partitions.sql`` alone. Whoever finds one missing, and no load
at work, builds it: a load that was killed leaves nothing to mend by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import errors, sql

_FILE = "04_partitions.sql"
# The index of histories stays: duplicates are looked up in it.
_NAMES = ("interactions_user_arrival", "interactions_by_time", "interactions_item_history")
_STATEMENT = re.compile(r"^create index (\w+)\s[^;]+;", re.MULTILINE)
_LOCK = "hashtextextended('shortlist.indexes', 0)"
_EMPTY = "select not exists (select from shortlist.interactions)"


@contextmanager
def deferred(connection: psycopg.Connection[Any], wanted: bool) -> Iterator[None]:
    """Do without the indexes while a table that holds no event is filled; build them at the end.

    Building them holds up writers of events, not readers, for about 3 seconds a million events.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection (no transaction open).
    wanted : bool
        Whether much will be written. Without it, and where there are events already, the indexes
        stay, unless a load that was killed has dropped them.
    """
    with _alone(connection) as alone:
        if alone and wanted:
            _drop(connection)
        try:
            yield
        finally:
            if alone and not connection.closed:
                _build(connection)


def restore(connection: psycopg.Connection[Any]) -> None:
    """Build the indexes that a load which was killed has left out; a load at work does it itself.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection (no transaction open).
    """
    with _alone(connection) as alone:
        if alone:
            _build(connection)


@contextmanager
def _alone(connection: psycopg.Connection[Any]) -> Iterator[bool]:
    """Tell whether nobody else drops or builds the indexes until the end."""
    with connection.transaction():
        row = connection.execute(sql.SQL(f"select pg_try_advisory_lock({_LOCK})")).fetchone()
    alone = row == (True,)
    try:
        yield alone
    finally:
        if alone and not connection.closed:
            with connection.transaction():
                connection.execute(sql.SQL(f"select pg_advisory_unlock({_LOCK})"))


def _drop(connection: psycopg.Connection[Any]) -> None:
    try:
        with connection.transaction():
            connection.execute("set local lock_timeout = '1s'")
            connection.execute("lock table shortlist.interactions in access exclusive mode")
            if connection.execute(_EMPTY).fetchone() == (True,):
                for name in _NAMES:
                    index = sql.Identifier("shortlist", name)
                    connection.execute(sql.SQL("drop index if exists {}").format(index))
    except errors.LockNotAvailable:
        return  # somebody reads or writes: the load is slower, no more


def _build(connection: psycopg.Connection[Any]) -> None:
    text = files("sql").joinpath(_FILE).read_text(encoding="utf-8")
    statements = {found[1]: found[0] for found in _STATEMENT.finditer(text)}
    for name in _NAMES:
        with connection.transaction():
            connection.execute("set local search_path = shortlist, pg_temp")
            connection.execute("set local maintenance_work_mem = '256MB'")
            if connection.execute("select to_regclass(%s)", (name,)).fetchone() == (None,):
                connection.execute(sql.SQL(statements[name]))
