"""Refresh the feature views and run the checks of ``sql/99_checks.sql``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import errors, sql

from features.errors import DatabaseUnavailable
from features.schema import NOT_APPLIED, not_applied, run_script, sql_files

# In the order in which each builds on those before it.
VIEWS = (
    "item_daily",
    "user_daily",
    "user_category_daily",
    "item_features",
    "user_category_features",
    "user_features",
)
_LOCK = "shortlist.refresh"
_WRITERS_TIMEOUT_S = 600

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, what is done and what there is in all."""


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """What a refresh did.

    Attributes
    ----------
    as_of : datetime
        The views hold the events before this moment.
    watermark : int
        … and of these, those with an interaction_id up to this one.
    seconds : dict of str to float
        Seconds for each view.
    """

    as_of: datetime
    watermark: int
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the checks: what must hold, whether it does, and the figures."""

    check: str
    passed: bool
    detail: str


def _ignore(step: str, done: int, total: int) -> None:
    """Report progress to nobody."""


def _watermark(connection: psycopg.Connection[Any]) -> tuple[int, datetime]:
    """Return the highest interaction_id below which no writer is still at work, and the time.

    Ids are taken before they are committed, so the highest visible one may have an invisible
    lower neighbour. A share lock waits for the writers of the moment; it is tried for short
    times only, since new writers wait behind it.
    """
    deadline = time.monotonic() + _WRITERS_TIMEOUT_S
    while True:
        try:
            with connection.transaction():
                connection.execute("set local lock_timeout = '200ms'")
                connection.execute("lock table interactions in share mode")
                row = connection.execute(
                    "select coalesce(max(interaction_id), 0), clock_timestamp() from interactions"
                ).fetchone()
                assert row is not None
                return int(row[0]), row[1]
        except errors.LockNotAvailable as error:
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"a transaction writes interactions for more than {_WRITERS_TIMEOUT_S} s:"
                    " refresh again when it has ended"
                ) from error
            time.sleep(0.3)


def _vacuum(connection: psycopg.Connection[Any]) -> None:
    """Clear away the rows that were replaced, so that reads need the indexes only."""
    connection.autocommit = True
    try:
        for name in (*VIEWS, "refresh_point"):
            connection.execute(sql.SQL("vacuum (analyze) {}").format(sql.Identifier(name)))
    finally:
        connection.autocommit = False


def refresh(connection: psycopg.Connection[Any], progress: Progress | None = None) -> RefreshReport:
    """Compute all feature views anew; readers see the old values until all are done.

    Calls at the same time run one after the other. A refresh that is killed changes nothing.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection (no transaction open).
    progress : callable, optional
        Called as ``progress(view, done, total)``.

    Raises
    ------
    SchemaError
        The schema was not applied.
    DatabaseUnavailable
        Writers did not pause for ten minutes.
    """
    report = progress or _ignore
    seconds: dict[str, float] = {}
    connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (_LOCK,))
    connection.commit()
    try:
        watermark, as_of = _watermark(connection)
        with connection.transaction():
            connection.execute("set local search_path = shortlist")
            connection.execute(
                "update refresh_point set watermark = %s, as_of = %s", (watermark, as_of)
            )
            for done, view in enumerate(VIEWS):
                report(view, done, len(VIEWS))
                started = time.perf_counter()
                connection.execute(
                    sql.SQL("refresh materialized view concurrently {}").format(
                        sql.Identifier(view)
                    )
                )
                seconds[view] = time.perf_counter() - started
                connection.execute(
                    "insert into feature_refreshes (view, as_of, watermark, seconds)"
                    " values (%s, %s, %s, %s)",
                    (view, as_of, watermark, seconds[view]),
                )
            report(VIEWS[-1], len(VIEWS), len(VIEWS))
        _vacuum(connection)
    except NOT_APPLIED as error:
        raise not_applied(error) from error
    finally:
        if not connection.closed:
            connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", (_LOCK,))
            connection.commit()
    return RefreshReport(as_of, watermark, seconds)


def checks(connection: psycopg.Connection[Any]) -> list[Check]:
    """Run ``sql/99_checks.sql`` and return its rows, failed ones first."""
    text = next(file.text for file in sql_files() if file.name.startswith("99"))
    try:
        with connection.transaction():
            rows = run_script(connection, text).fetchall()
    except NOT_APPLIED as error:
        raise not_applied(error) from error
    found = [Check(str(check), bool(passed), str(detail)) for check, passed, detail in rows]
    return sorted(found, key=lambda row: row.passed)
