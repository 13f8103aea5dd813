"""Which rows of a source may be new: where a pass begins to read, and where the next one may.

A row may become visible long after its id or time was given out, so the highest value seen is
no safe place to go on from. It becomes one when all transactions that were running when it was
seen have ended: what starts later is given higher values.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from features.errors import InputError
from features.ingest.sources import GROWING, Source, columns_of

_PATIENCE_S = 1.0

_RUNNING = """
select coalesce(array_agg(pg_locks.virtualtransaction), '{}')
from pg_locks left join pg_stat_activity on pg_locks.pid = pg_stat_activity.pid
where
    pg_locks.locktype = 'virtualxid' and pg_locks.pid <> pg_backend_pid()
    and coalesce(pg_stat_activity.datname, current_database()) = current_database()
"""

# It has no virtual id any more: while there is one, nothing is said to have ended.
_PREPARED = "select exists (select from pg_prepared_xacts where database = current_database())"

_ADVANCE = """
update shortlist.sources
set read_from = %s, pending_from = %s, pending_transactions = %s, loaded_at = now()
where events_table = %s
"""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a pass reads (`source.read_from` on), and where the next one may go on."""

    source: Source
    kind: str
    next_from: str | None
    pending_from: str | None
    pending_transactions: list[str]

    @property
    def condition(self) -> sql.Composable:
        """What the rows of the view fulfil that are read."""
        if self.source.increasing is None or self.source.read_from is None:
            return sql.SQL("true")
        # Clocks of writers may differ, as everywhere.
        early = " - interval '5 minutes'" if self.kind.startswith("timestamp") else ""
        return sql.SQL("(place >= {}::{}{} or place is null)").format(
            sql.Literal(self.source.read_from), sql.SQL(self.kind), sql.SQL(early)
        )

    def advance(self, connection: psycopg.Connection[Any]) -> None:
        """Record that the rows were stored, in the transaction that stores them."""
        connection.execute(
            _ADVANCE,
            [self.next_from, self.pending_from, self.pending_transactions, self.source.events],
        )


def begin_reading(connection: psycopg.Connection[Any], source: Source) -> Reading:
    """Look how far the source reaches now, and who may still add rows below.

    The caller holds :func:`features.ingest.sources.sources_lock`, and reads the rows after this.
    """
    if source.increasing is None:
        return Reading(source, "", None, None, [])
    with connection.transaction():
        kind = columns_of(connection, source.events)[source.increasing]
        row = connection.execute(
            sql.SQL("select max(place)::text from {} where {}").format(
                sql.Identifier("shortlist", source.view), sql.SQL(GROWING[kind])
            )
        ).fetchone()
    highest = None if row is None else row[0]
    if highest in ("NaN", "Infinity"):
        raise InputError(
            f"table {source.events!r}: column {source.increasing!r} holds {highest}, above which"
            " nothing grows: name another with --increasing"
        )
    running = _running(connection)
    pending, others = source.pending_from, source.pending_transactions
    if _have_ended(connection, running, _PATIENCE_S):
        return Reading(source, kind, highest or source.read_from, None, [])
    if pending is None or _have_ended(connection, others, 0):
        return Reading(source, kind, pending or source.read_from, highest, running)
    return Reading(source, kind, source.read_from, pending, others)


def _running(connection: psycopg.Connection[Any]) -> list[str]:
    with connection.transaction():
        row = connection.execute(_RUNNING).fetchone()
    return [] if row is None else list(row[0])


def _have_ended(
    connection: psycopg.Connection[Any], transactions: list[str], patience_s: float
) -> bool:
    """Say whether those transactions have ended, after a short time of waiting for them."""
    end = time.monotonic() + patience_s
    while True:
        with connection.transaction():
            prepared = connection.execute(_PREPARED).fetchone()
        if prepared == (False,) and not set(transactions) & set(_running(connection)):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.02)
