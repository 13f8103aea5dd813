"""Move the partials and sums of ``sql/05_partials.sql`` forward by what is new, or count anew.

The steps are SQL functions of ``sql/30_refresh.sql`` to ``33_rebuild.sql``. Here are their order,
the lock around them, and the moment up to which they count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import errors, sql

from features import indexes
from features.errors import ConfigError, DatabaseUnavailable, SchemaError
from features.partitions import PARTITION_DAYS, ensure
from features.schema import NOT_APPLIED, not_applied, run_script, sql_files
from features.spec import WINDOWS_DAYS

TABLES = (
    "click_daily",
    "item_daily",
    "user_daily",
    "user_category_daily",
    "covisit_daily",
    "item_totals",
    "user_category_totals",
    "user_totals",
)
"""What a refresh writes, besides ``refresh_point``."""

_BEGIN = "begin"
STEPS: dict[str, tuple[str, ...]] = {
    _BEGIN: (),
    "click_daily": ("refresh_clicks",),
    "item_daily": ("refresh_item_daily",),
    "user_daily": ("refresh_user_daily",),
    "user_category_daily": ("refresh_user_category_daily",),
    "covisit_daily": ("refresh_covisit_daily",),
    "item_totals": ("refresh_item_totals",),
    "user_category_totals": ("refresh_user_category_totals",),
    "user_totals": ("refresh_user_totals",),
    "corrections": ("refresh_find_stale", "recount_stale"),
}
"""SQL functions of each step of a refresh, in order."""

FULL_STEPS: dict[str, tuple[str, ...]] = {
    _BEGIN: (),
    "click_daily": ("refresh_clicks",),
    "item_daily": ("refresh_item_daily", "rebuild_item_daily"),
    "user_daily": ("refresh_user_daily", "rebuild_user_daily"),
    "user_category_daily": ("refresh_user_category_daily", "rebuild_user_category_daily"),
    "covisit_daily": ("refresh_covisit_daily", "rebuild_covisit_daily"),
    "item_totals": ("rebuild_find_keys", "recount_item_totals"),
    "user_category_totals": ("rebuild_user_category_totals",),
    "user_totals": ("recount_user_totals",),
}
"""The same of a full one: what is new for dropped days is added, all others are counted anew."""

_LOCK = "shortlist.refresh"
_WRITERS_TIMEOUT_S = 600
# How long table feature_refreshes keeps what refreshes took.
_RECORD_DAYS = 30

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, what is done and what there is in all."""


@dataclass(frozen=True, slots=True)
class RefreshReport:
    """What a refresh did.

    Attributes
    ----------
    as_of : datetime
        The sums hold the events before this moment.
    watermark : int
        … and of these, those with an interaction_id up to this one.
    full : bool
        Whether everything was counted anew.
    seconds : dict of str to float
        Seconds for each step.
    """

    as_of: datetime
    watermark: int
    full: bool
    seconds: dict[str, float]


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the checks: what must hold, whether it does, and the figures."""

    check: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class _Point:
    """Up to where a refresh counts; `snapshot` sees exactly the rows up to the watermarks."""

    watermark: int
    answer_watermark: int
    as_of: datetime
    snapshot: str


def _ignore(step: str, done: int, total: int) -> None:
    """Report progress to nobody."""


@contextmanager
def refresh_lock(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Hold the lock under which the sums are written; wait for who holds it.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection (no transaction open).
    """
    connection.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (_LOCK,))
    connection.commit()
    try:
        yield
    finally:
        if not connection.closed:
            connection.rollback()
            connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", (_LOCK,))
            connection.commit()


def _sequences(connection: psycopg.Connection[Any]) -> sql.Composed:
    """Return the select of the last ids that were handed out."""
    row = connection.execute(
        "select pg_get_serial_sequence('shortlist.interactions', 'interaction_id'),"
        " pg_get_serial_sequence('shortlist.answers', 'answer_id')"
    ).fetchone()
    assert row is not None
    # Of the form schema.name, quoted where needed.
    interaction_ids, answer_ids = (sql.SQL(name) for name in row)
    return sql.SQL(
        "select events.last_value - (not events.is_called)::integer,"
        " answers.last_value - (not answers.is_called)::integer, clock_timestamp(),"
        " pg_current_snapshot()::text from {} as events cross join {} as answers"
    ).format(interaction_ids, answer_ids)


def _find_point(connection: psycopg.Connection[Any]) -> _Point:
    """Return the highest ids below which no writer is still at work, and the time.

    Ids are taken before they are committed, so the highest visible one may have an invisible
    lower neighbour. A share lock waits for the writers of the moment; it is tried for short
    times only, since new writers wait behind it. Only the parents are locked, which every
    writer locks too: the partitions may be vacuumed.
    """
    deadline = time.monotonic() + _WRITERS_TIMEOUT_S
    read = _sequences(connection)
    connection.commit()
    while True:
        try:
            with connection.transaction():
                connection.execute("set local lock_timeout = '200ms'")
                connection.execute(
                    "lock table only shortlist.interactions, only shortlist.answers in share mode"
                )
                row = connection.execute(read).fetchone()
                assert row is not None
                return _Point(*row)
        except errors.LockNotAvailable as error:
            if time.monotonic() > deadline:
                raise DatabaseUnavailable(
                    f"a transaction writes interactions for more than {_WRITERS_TIMEOUT_S} s:"
                    " refresh again when it has ended"
                ) from error
            time.sleep(0.3)


def _moment(now: datetime, wanted: datetime | None, known: datetime, full: bool) -> datetime:
    """Return the moment up to which to count; time never goes back but for a full refresh."""
    if wanted is None:
        return now if full else max(now, known)
    if wanted > now:
        raise ConfigError(f"as_of is {wanted}, expected a moment up to now ({now})")
    if wanted < known and not full:
        raise ConfigError(
            f"as_of is {wanted}, but events up to {known} are counted: expected a later moment, or"
            " a full refresh"
        )
    return wanted


def _write(
    connection: psycopg.Connection[Any],
    found: _Point,
    wanted: datetime | None,
    full: bool,
    report: Progress,
) -> RefreshReport:
    """Run the steps in one transaction that sees the tables as they are at its start."""
    seconds: dict[str, float] = {}
    with connection.transaction():
        connection.execute("set transaction isolation level repeatable read")
        for setting in (
            "search_path = shortlist",
            # The ids and times in question decide the plan.
            "plan_cache_mode = force_custom_plan",
            # When the client is killed, the server notices and gives up.
            "client_connection_check_interval = '1s'",
        ):
            connection.execute(sql.SQL("set local " + setting))
        row = connection.execute(
            "select watermark = 0 and answer_watermark = 0, as_of, raw_since, feature_windows()"
            " from refresh_point"
        ).fetchone()
        assert row is not None
        if row[3] != list(WINDOWS_DAYS):
            raise SchemaError(
                f"the views count windows of {row[3]} days, features.windows_days of this process"
                f" is {list(WINDOWS_DAYS)}: give every process the same, then run 'shortlist db"
                " apply'"
            )
        everything = full or row[0]
        if everything:
            connection.execute("set local work_mem = '256MB'")
        as_of = _moment(found.as_of, wanted, row[1], everything)
        longest = max(WINDOWS_DAYS)
        if row[2] is not None and (as_of - timedelta(days=longest)).date() < row[2]:
            raise ConfigError(
                f"a window of {longest} days begins before {row[2]}, and older events were"
                " dropped: shorten features.windows_days and run 'shortlist db apply', or wait"
            )
        steps = FULL_STEPS if everything else STEPS
        for done, (step, functions) in enumerate(steps.items()):
            report(step, done, len(steps))
            started = time.perf_counter()
            if step == _BEGIN:
                connection.execute(
                    "select refresh_begin(%s, %s, %s, %s::smallint[], %s)",
                    (
                        found.watermark,
                        found.answer_watermark,
                        as_of,
                        list(WINDOWS_DAYS),
                        everything,
                    ),
                )
            for function in functions:
                connection.execute(sql.SQL("select {}()").format(sql.Identifier(function)))
            seconds[step] = time.perf_counter() - started
            connection.execute(
                "insert into feature_refreshes (view, as_of, watermark, answer_watermark, seconds)"
                " values (%s, %s, %s, %s, %s)",
                (step, as_of, found.watermark, found.answer_watermark, seconds[step]),
            )
        connection.execute(
            sql.SQL(
                "delete from feature_refreshes"
                " where finished_at < now() - make_interval(days => {})"
            ).format(_RECORD_DAYS)
        )
        connection.execute(
            "update refresh_point set watermark = %s, answer_watermark = %s, as_of = %s,"
            " snapshot = %s::pg_snapshot, window_days = %s::smallint[]",
            (
                found.watermark,
                found.answer_watermark,
                as_of,
                found.snapshot,
                list(WINDOWS_DAYS),
            ),
        )
        report(step, len(steps), len(steps))
    return RefreshReport(as_of, found.watermark, everything, seconds)


def _maintain(connection: psycopg.Connection[Any], full: bool) -> None:
    """Keep later reads short: what a full refresh replaced is cleared away, ids are indexed.

    New pages of raw events are not in the index of their ids before someone puts them there;
    until then every refresh would read them. After the rows of a small refresh the server
    cleans up by itself.
    """
    connection.autocommit = True
    try:
        if full:
            for name in (*TABLES, "refresh_point"):
                connection.execute(
                    sql.SQL("vacuum (analyze) {}").format(sql.Identifier("shortlist", name))
                )
            connection.execute("analyze shortlist.interactions, shortlist.answers")
        connection.execute("set lock_timeout = '200ms'")
        indexes = connection.execute(
            "select pg_inherits.inhrelid::regclass::text from pg_inherits where inhparent in"
            " ('shortlist.interactions_arrival'::regclass, 'shortlist.answers_arrival'::regclass,"
            " 'shortlist.answers_by_time'::regclass)"
        ).fetchall()
        for (index,) in indexes:
            try:
                connection.execute("select brin_summarize_new_values(%s::regclass)", (index,))
            except errors.LockNotAvailable:
                continue  # it is being vacuumed, which does the same
    finally:
        if not connection.closed:
            connection.execute("reset lock_timeout")
            connection.autocommit = False


def refresh_locked(
    connection: psycopg.Connection[Any],
    progress: Progress | None = None,
    full: bool = False,
    as_of: datetime | None = None,
    partition_days: int = PARTITION_DAYS,
) -> RefreshReport:
    """Do what :func:`refresh` does; the caller holds :func:`refresh_lock`."""
    ensure(connection, partition_days)
    found = _find_point(connection)
    result = _write(connection, found, as_of, full, progress or _ignore)
    _maintain(connection, result.full)
    return result


def refresh(
    connection: psycopg.Connection[Any],
    progress: Progress | None = None,
    full: bool = False,
    as_of: datetime | None = None,
    partition_days: int = PARTITION_DAYS,
) -> RefreshReport:
    """Add what is new to all partials and sums; readers see the old ones until all is done.

    It costs what is new (events, answers, corrections, and what windows leave behind), whatever
    the history. Calls at the same time run one after the other; one that is killed changes
    nothing.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection (no transaction open).
    progress : callable, optional
        Called as ``progress(step, done, total)``.
    full : bool
        Count everything anew from the raw events that are there. The first refresh always does.
    as_of : datetime, optional
        Count events before this moment only, which lies neither in the future nor, unless
        `full`, before that of the last refresh. Default: now.
    partition_days : int
        Days of a partition of raw events, where one is made.

    Raises
    ------
    ConfigError
        `as_of` is out of range, or a window begins before the raw events that are left.
    SchemaError
        The schema was not applied, or with other windows than those of this process.
    DatabaseUnavailable
        Writers did not pause for ten minutes.
    """
    try:
        with refresh_lock(connection):
            indexes.restore(connection)
            return refresh_locked(connection, progress, full, as_of, partition_days)
    except NOT_APPLIED as error:
        raise not_applied(error) from error


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
