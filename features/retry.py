"""Run a statement on a pool; repeat it when its connection was cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests

from features.errors import DatabaseUnavailable
from features.schema import NOT_APPLIED, not_applied

_ATTEMPTS = 3


async def run_async(
    pool: AsyncConnectionPool[AsyncConnection[Any]],
    statement: str,
    parameters: Sequence[Any] | Mapping[str, Any],
    timeout_ms: int | None = None,
) -> list[tuple[Any, ...]]:
    """Run one statement that may safely run twice and return its rows.

    Connections are not checked before use, which would cost a round trip: when one turns out
    to be dead (PostgreSQL restarted), the pool drops all dead ones and the statement goes to
    another, twice at most. So does a statement that lost a deadlock.

    Parameters
    ----------
    timeout_ms : int, optional
        Longest time of the statement, instead of that of the pool.

    Raises
    ------
    DatabaseUnavailable
        No connection is free or to be had, or the statement took too long.
    SchemaError
        The schema was not applied, or is of another version.
    """
    attempt = 1
    while True:
        try:
            async with pool.connection() as connection:
                cursor = connection.cursor(binary=True)
                if timeout_ms is None:
                    await cursor.execute(statement, parameters)
                    return await cursor.fetchall()
                async with connection.transaction():
                    await cursor.execute(
                        "select set_config('statement_timeout', %s, true)", (str(timeout_ms),)
                    )
                    await cursor.execute(statement, parameters)
                    return await cursor.fetchall()
        except (PoolTimeout, TooManyRequests, PoolClosed) as error:
            raise DatabaseUnavailable(f"no database connection is free: {error}") from error
        except psycopg.errors.QueryCanceled as error:
            raise DatabaseUnavailable(f"a statement took too long: {error}") from error
        except NOT_APPLIED as error:
            raise not_applied(error) from error
        except psycopg.errors.DeadlockDetected as error:
            if attempt == _ATTEMPTS:
                raise DatabaseUnavailable(f"a statement lost {attempt} deadlocks") from error
        except psycopg.OperationalError as error:
            if attempt == _ATTEMPTS:
                raise DatabaseUnavailable(
                    f"the database connection was lost {attempt} times: {error}"
                ) from error
            await pool.check()
        attempt += 1
