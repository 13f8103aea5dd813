"""Drop raw events after some days; the partials by day and the sums stay and stand for them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from datetime import time as time_of_day
from typing import Any

import psycopg
from psycopg import errors, sql

from features.errors import ConfigError, DatabaseUnavailable
from features.partitions import PARENTS, PARTITION_DAYS, Partition, partitions
from features.refresh import Progress, refresh_lock, refresh_locked
from features.schema import NOT_APPLIED, not_applied
from features.spec import WINDOWS_DAYS

LEAST_DAYS = max(WINDOWS_DAYS) + 2
"""Windows begin on a day of raw events, and clicks look back one day more."""

# Whole days that co-visits are counted over: sql/14_covisits.sql.
_COVISIT_DAYS = 90

_IDS = {
    "interactions": ("interaction_id", "watermark"),
    "answers": ("answer_id", "answer_watermark"),
}
_PAGES = 4096
_ATTEMPTS = 50


@dataclass(slots=True)
class RetentionReport:
    """What was dropped.

    Attributes
    ----------
    raw_since : date
        First UTC day whose raw events and answers are all there. Those of the day before stay
        too: clicks and co-visits of this day look back at them.
    partitions : list of str
        Tables that were dropped whole.
    counts : dict of str to int
        Rows that left, by table.
    """

    raw_since: date
    partitions: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


def _value(connection: psycopg.Connection[Any], query: sql.Composed) -> Any:  # noqa: ANN401
    row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def _delete(connection: psycopg.Connection[Any], table: str, condition: sql.Composable) -> int:
    """Delete rows page by page, each block a transaction, and free the pages.

    The statements name a partition, not its parent, so no correction is remembered.
    """
    name = sql.Identifier(table)
    pages = _value(
        connection,
        sql.SQL("select pg_relation_size({}) / current_setting('block_size')::integer").format(
            sql.Literal(f"shortlist.{table}")
        ),
    )
    connection.commit()
    deleted = 0
    for first in range(0, int(pages), _PAGES):
        with connection.transaction():
            deleted += connection.execute(
                sql.SQL("delete from shortlist.{} where ctid >= {} and ctid < {} and {}").format(
                    name,
                    sql.Literal(f"({first},0)") + sql.SQL("::tid"),
                    sql.Literal(f"({first + _PAGES},0)") + sql.SQL("::tid"),
                    condition,
                )
            ).rowcount
    if deleted:
        connection.autocommit = True
        try:
            connection.execute(sql.SQL("vacuum (analyze) shortlist.{}").format(name))
        finally:
            connection.autocommit = False
    return deleted


def _counted(parent: str) -> sql.Composable:
    """Return the condition that the sums hold a row: it arrived before the last refresh."""
    identifier, watermark = _IDS[parent]
    return sql.SQL("{} <= (select {} from shortlist.refresh_point)").format(
        sql.Identifier(identifier), sql.Identifier(watermark)
    )


def _drop(
    connection: psycopg.Connection[Any], parent: str, old: list[Partition], past: Partition
) -> list[str]:
    """Drop partitions, oldest first, up to one with a row that is not counted yet.

    The table of the past takes over their time, for events that come very late. All tables are
    locked, for the time of this transaction.
    """
    dropped: list[Partition] = []
    names: dict[str, sql.Composable] = {
        "parent": sql.Identifier("shortlist", parent),
        "past": sql.Identifier(past.name),
    }
    with connection.transaction():
        connection.execute("set local search_path = shortlist")
        connection.execute("set local lock_timeout = '200ms'")
        connection.execute(sql.SQL("lock table {parent} in access exclusive mode").format(**names))
        for part in old:
            uncounted = sql.SQL("select exists (select from {} where not {})").format(
                sql.Identifier(part.name), _counted(parent)
            )
            if _value(connection, uncounted):
                break
            connection.execute(sql.SQL("drop table {}").format(sql.Identifier(part.name)))
            dropped.append(part)
        if dropped:
            names["ends_at"] = sql.Literal(dropped[-1].ends_at)
            for statement in (
                "alter table {parent} detach partition {past}",
                "alter table {parent} attach partition {past} for values from (minvalue)"
                " to ({ends_at})",
            ):
                connection.execute(sql.SQL(statement).format(**names))
    return [part.name for part in dropped]


def _drop_partitions(
    connection: psycopg.Connection[Any], parent: str, cutoff: datetime, report: RetentionReport
) -> None:
    past, *later = partitions(connection, f"shortlist.{parent}")
    connection.commit()
    old = [part for part in later if part.ends_at <= cutoff]
    if not old:
        return
    rows = {
        part.name: _value(
            connection,
            sql.SQL("select count(*) from {}").format(sql.Identifier("shortlist", part.name)),
        )
        for part in old
    }
    connection.commit()
    for _ in range(_ATTEMPTS):
        try:
            names = _drop(connection, parent, old, past)
        except errors.LockNotAvailable:
            time.sleep(0.1)
            continue
        report.partitions += names
        report.counts[parent] += sum(rows[name] for name in names)
        return
    raise DatabaseUnavailable(
        f"{parent} is read or written without a pause: its old partitions are still there; drop"
        " raw events again when less is going on"
    )


def _drop_rows(
    connection: psycopg.Connection[Any], parent: str, cutoff: datetime, report: RetentionReport
) -> None:
    """Delete what is old in the partitions that hold younger rows too, or take late ones."""
    condition = sql.SQL("{} < {} and {}").format(
        sql.Identifier(PARENTS[parent]), sql.Literal(cutoff), _counted(parent)
    )
    found = partitions(connection, f"shortlist.{parent}")
    connection.commit()
    tables = [
        part.name
        for part in found
        if part.starts_at is None or part.starts_at < cutoff < part.ends_at
    ]
    for table in (*tables, f"{parent}_later"):
        report.counts[parent] += _delete(connection, table, condition)


def drop_raw_events(
    connection: psycopg.Connection[Any],
    keep_days: int,
    progress: Progress | None = None,
    partition_days: int = PARTITION_DAYS,
) -> RetentionReport:
    """Drop raw events, answers, served features and event ids that are older than some days.

    Pairs of co-visits leave 90 days later, when no event is left that looks back to them.

    It refreshes first, so that all that leaves is counted; no feature of now changes. Whole
    partitions are dropped, the rest is deleted in blocks. One that is killed goes on where it
    stood when it is run again. Afterwards values as of a moment before `raw_since` count whole
    UTC days, and an event of those days, sent or loaded again, counts again.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection (no transaction open).
    keep_days : int
        Whole UTC days before today that stay, at least `LEAST_DAYS`.
    progress : callable, optional
        Called as ``progress(step, done, total)`` while it refreshes.
    partition_days : int
        Days of a partition of raw events, where one is made.

    Raises
    ------
    ConfigError
        `keep_days` is too low.
    DatabaseUnavailable
        Writers or readers did not pause.
    SchemaError
        The schema was not applied.
    """
    if keep_days < LEAST_DAYS:
        raise ConfigError(
            f"days is {keep_days}, expected at least {LEAST_DAYS}: the longest window,"
            f" {max(WINDOWS_DAYS)} days, and two more"
        )
    try:
        with refresh_lock(connection):
            done = refresh_locked(connection, progress, partition_days=partition_days)
            wanted = done.as_of.astimezone(UTC).date() - timedelta(days=keep_days)
            # First, in a transaction of its own: from here on partials stand for what is older,
            # whether it is still there or not.
            with connection.transaction():
                row = connection.execute(
                    "update shortlist.refresh_point"
                    " set raw_since = greatest(raw_since, %s) returning raw_since",
                    (wanted,),
                ).fetchone()
            assert row is not None
            report = RetentionReport(raw_since=row[0])
            cutoff = datetime.combine(row[0] - timedelta(days=1), time_of_day(tzinfo=UTC))
            for parent in PARENTS:
                report.counts[parent] = 0
                _drop_rows(connection, parent, cutoff, report)
                _drop_partitions(connection, parent, cutoff, report)
            report.counts["served_features"] = _delete(
                connection,
                "served_features",
                sql.SQL("served_at < {}").format(sql.Literal(cutoff)),
            )
            # No event that is left, and so no training example, looks back further.
            oldest = cutoff.date() - timedelta(days=_COVISIT_DAYS)
            report.counts["covisit_daily"] = _delete(
                connection,
                "covisit_daily",
                sql.SQL("event_day < {}").format(sql.Literal(oldest)),
            )
            report.counts["event_ids"] = _delete(
                connection,
                "event_ids",
                sql.SQL("received_on < {}").format(sql.Literal(cutoff.date())),
            )
            return report
    except NOT_APPLIED as error:
        raise not_applied(error) from error
