"""Partitions of raw events and answers by time: made ahead, so that old ones leave as tables."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import errors, sql

PARENTS = {"interactions": "occurred_at", "answers": "served_at"}
"""The partitioned tables, and the column that divides each."""

PARTITION_DAYS = 90
_AHEAD = 2
_ATTEMPTS = 10

_PARTITIONS = r"""
with bounds as (
    select
        pg_class.relname,
        regexp_match(
            pg_get_expr(pg_class.relpartbound, pg_class.oid),
            'FROM \(''?(.*?)''?\) TO \(''(.*)''\)'
        ) as parts
    from pg_inherits
    inner join pg_class on pg_inherits.inhrelid = pg_class.oid
    where pg_inherits.inhparent = %s::regclass
)
select relname, nullif(parts[1], 'MINVALUE')::timestamptz, parts[2]::timestamptz
from bounds
where parts is not null
order by parts[2]::timestamptz
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A table with the rows from `starts_at` up to, and without, `ends_at`.

    The first of a parent has no `starts_at`: it holds all that is older than the others.
    """

    name: str
    starts_at: datetime | None
    ends_at: datetime


def partitions(connection: psycopg.Connection[Any], parent: str) -> list[Partition]:
    """Return the partitions of a parent in the order of time, without the default one."""
    rows = connection.execute(_PARTITIONS, (parent,)).fetchall()
    return [Partition(*row) for row in rows]


def _make(
    connection: psycopg.Connection[Any], parent: str, starts_at: datetime, ends_at: datetime
) -> str:
    """Add one partition, with the rows that the default one holds of its time."""
    name = f"{parent}_{starts_at:%Y_%m_%d}"
    names = {
        "parent": sql.Identifier(parent),
        "child": sql.Identifier(name),
        "default": sql.Identifier(f"{parent}_later"),
        "column": sql.Identifier(PARENTS[parent]),
        "starts_at": sql.Literal(starts_at),
        "ends_at": sql.Literal(ends_at),
    }
    # Attaching a filled table, unlike creating a partition, lets writers of the others go on.
    for statement in (
        "lock table {default} in access exclusive mode",
        "create table {child} (like {parent} including defaults including constraints)",
        "with moved as (delete from {default} where {column} >= {starts_at}"
        " and {column} < {ends_at} returning *) insert into {child} select * from moved",
        "alter table {parent} attach partition {child} for values from ({starts_at})"
        " to ({ends_at})",
    ):
        connection.execute(sql.SQL(statement).format(**names))
    return name


def _ensure(connection: psycopg.Connection[Any], width_days: int) -> list[str]:
    made = []
    connection.execute("select pg_advisory_xact_lock(hashtextextended('shortlist.partitions', 0))")
    row = connection.execute("select clock_timestamp()").fetchone()
    assert row is not None
    for parent in PARENTS:
        known = partitions(connection, parent)
        ends_at = known[-1].ends_at
        ahead = sum(part.starts_at is not None and part.starts_at > row[0] for part in known)
        while ahead < _AHEAD:
            starts_at, ends_at = ends_at, ends_at + timedelta(days=width_days)
            made.append(_make(connection, parent, starts_at, ends_at))
            ahead += starts_at > row[0]
    return made


def ensure(connection: psycopg.Connection[Any], width_days: int = PARTITION_DAYS) -> list[str]:
    """Make the partitions of now and of the next two periods, where they are missing.

    Each begins where the last one ends. While they are missing the default partition takes
    their rows, so one that cannot be made now, because a reader or writer holds the table for
    longer than two seconds, is left to the next call.

    Parameters
    ----------
    connection : psycopg.Connection
        With the schema applied; a transaction may be open.
    width_days : int
        Days that a new partition covers; those that are there stay as they are.

    Returns
    -------
    list of str
        Names of the tables that were made.
    """
    for _ in range(_ATTEMPTS):
        try:
            with connection.transaction():
                connection.execute("set local search_path = shortlist")
                connection.execute("set local lock_timeout = '200ms'")
                made = _ensure(connection, width_days)
                connection.execute("set local lock_timeout = 0")
                return made
        except errors.LockNotAvailable:
            time.sleep(0.05)
    return []
