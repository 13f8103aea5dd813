"""Erase a person: every row of the user, and the user's part in the sums over all users."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection, errors
from psycopg_pool import AsyncConnectionPool

from features.errors import DatabaseUnavailable
from features.retry import run_async
from features.schema import NOT_APPLIED, not_applied

_ERASE = "select table_name, deleted from shortlist.erase_user(%s)"
_TIMEOUT_MS = 60_000
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class ErasureReport:
    """What was deleted.

    Attributes
    ----------
    counts : dict of str to int
        Rows of the user by table; all 0 for a user of whom nothing was stored.
    """

    counts: dict[str, int]


def _report(rows: Iterable[tuple[Any, ...]]) -> ErasureReport:
    return ErasureReport({str(table): int(deleted) for table, deleted in rows})


def erase_user(connection: psycopg.Connection[Any], user_id: str) -> ErasureReport:
    """Delete every row of a user in one transaction, and count anew what held the user's events.

    Items' sums, co-visits and click rates are then as if the user had never been there, as far
    as the raw events are. Of days whose raw events were dropped, the sums over all users keep
    their counts, which name nobody. What remains is a hash of the id, for 30 days: it keeps out
    what other processes still hold of the user and would write later.

    It waits for a running refresh and for the block of a running load.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection (no transaction open).
    user_id : str
        External id, known or not.

    Raises
    ------
    DatabaseUnavailable
        The user was not erased: someone corrected events at the same time, again and again.
    SchemaError
        The schema was not applied.
    """
    attempt = 1
    while True:
        try:
            with connection.transaction():
                return _report(connection.execute(_ERASE, (user_id,)).fetchall())
        except NOT_APPLIED as error:
            raise not_applied(error) from error
        except errors.DeadlockDetected as error:
            if attempt == _ATTEMPTS:
                raise DatabaseUnavailable(
                    f"erasing a user lost {attempt} deadlocks: erase the user again"
                ) from error
        attempt += 1


async def erase_user_async(
    pool: AsyncConnectionPool[AsyncConnection[Any]], user_id: str
) -> ErasureReport:
    """Do what :func:`erase_user` does, on a pool, within a minute.

    Erasing twice does no harm: when the connection is lost it is tried again, and then the
    counts may be those of the second time.

    Raises
    ------
    DatabaseUnavailable
        It is not known whether the user was erased, or a refresh went on for a minute: ask again.
    SchemaError
        The schema was not applied.
    """
    return _report(await run_async(pool, _ERASE, (user_id,), timeout_ms=_TIMEOUT_MS))
