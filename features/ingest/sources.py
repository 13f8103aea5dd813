"""Tables of the user as sources of events: a view over each, with the names and types of events."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from features.errors import InputError
from features.ingest.mapping import Mapping, TimeUnit, Wish, resolve
from features.schema import NOT_APPLIED, not_applied

_LOCK = "shortlist.sources"
_LONGEST_VIEW_NAME = 63

_COLUMNS = """
select attname, format_type(atttypid, null)
from pg_attribute
where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped
order by attnum
"""
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")
GROWING = {
    **dict.fromkeys(("smallint", "integer", "bigint", "numeric"), "true"),
    "timestamp with time zone": "place <= now()",
    "timestamp without time zone": "place <= now() at time zone 'utc'",
    "date": "place <= (now() at time zone 'utc')::date",
}
"""Types of columns that may grow, and where values end that can be true: one of the year 2999 would
hide all that comes until then."""

_VIEW = """
create view {view} as
select
    {user_id} as user_id, {item_id} as item_id, {occurred_at} as occurred_at,
    {value} as value, {event_type} as event_type, {event_id} as event_id, {place} as place
from {table}
"""

_SELECT = """
select
    events_table, view_name, items_table, mapping, increasing, read_from, pending_from,
    pending_transactions, loaded_at
from shortlist.sources
"""

_KEEP = """
insert into shortlist.sources (events_table, view_name, items_table, mapping, increasing)
values (%s, %s, %s, %s, %s)
on conflict (events_table) do update set
    items_table = excluded.items_table, mapping = excluded.mapping,
    increasing = excluded.increasing, read_from = null, pending_from = null,
    pending_transactions = '{}'
"""


@dataclass(frozen=True, slots=True)
class Source:
    """A table of the user that events are read from.

    Attributes
    ----------
    events, items : str, str or None
        The tables, named with their schemas.
    view : str
        Name of the view in the schema ``shortlist``.
    wish : Wish
        Which column is what, as far as it was said.
    increasing : str or None
        The column that only ever grows.
    read_from : str or None
        What the next pass reads from; None: it reads all.
    pending_from, pending_transactions : str or None, list of str
        What takes its place when those transactions have ended.
    loaded_at : datetime or None
        When the last pass ended.
    """

    events: str
    view: str
    items: str | None
    wish: Wish
    increasing: str | None
    read_from: str | None
    pending_from: str | None
    pending_transactions: list[str]
    loaded_at: datetime | None


def table_name(table: str) -> sql.Composed:
    """Return the name of a table as it is written in a statement, letter by letter."""
    return sql.SQL(".").join(sql.Identifier(part) for part in table.split("."))


def columns_of(connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
    """Return the columns of a table and their types, in the transaction of the caller.

    Raises
    ------
    InputError
        There is no such table.
    """
    found = connection.execute(_COLUMNS, [table_name(table).as_string(connection)]).fetchall()
    if not found:
        raise InputError(
            f"table {table!r}: there is none in this database; name it with its schema, as in"
            " public.ratings"
        )
    return dict(found)


@contextmanager
def sources_lock(connection: psycopg.Connection[Any], wait: bool = True) -> Iterator[bool]:
    """Hold the lock under which sources are read; say whether it was had, if not to `wait`."""
    function = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
    row = connection.execute(
        sql.SQL("select {}(hashtextextended(%s, 0))").format(sql.Identifier(function)), [_LOCK]
    ).fetchone()
    connection.commit()
    had = wait or bool(row and row[0])
    try:
        yield had
    finally:
        if had and not connection.closed:
            connection.rollback()
            connection.execute("select pg_advisory_unlock(hashtextextended(%s, 0))", [_LOCK])
            connection.commit()


def _source(row: tuple[Any, ...]) -> Source:
    events, view, items, said, *rest = row
    return Source(events, view, items, Wish(**said), *rest)


def list_sources(connection: psycopg.Connection[Any]) -> list[Source]:
    """Return all sources, by name.

    Raises
    ------
    SchemaError
        The schema was not applied.
    """
    try:
        with connection.transaction():
            return [_source(row) for row in connection.execute(_SELECT + "order by events_table")]
    except NOT_APPLIED as error:
        raise not_applied(error) from error


def remove_source(connection: psycopg.Connection[Any], events: str) -> None:
    """Forget a source and drop its view; the events that came from it stay.

    Raises
    ------
    InputError
        There is no such source.
    """
    known = {source.events: source for source in list_sources(connection)}
    if events not in known:
        raise InputError(
            f"source {events!r}: there is none, expected one of {', '.join(known) or 'none'}"
        )
    with connection.transaction():
        connection.execute(_drop(known[events].view))
        connection.execute("delete from shortlist.sources where events_table = %s", [events])


def _over(said: Wish, known: Wish) -> Wish:
    """Return what is said over what is known; another column may have another unit of time."""
    at = said.columns.get("occurred_at")
    if at is not None and at != known.columns.get("occurred_at"):
        known = replace(known, time_unit="auto")
    return said.over(known)


def _is_there(connection: psycopg.Connection[Any], view: str) -> bool:
    row = connection.execute(
        "select to_regclass(%s) is not null",
        [sql.Identifier("shortlist", view).as_string(connection)],
    ).fetchone()
    return row == (True,)


def _drop(view: str) -> sql.Composed:
    return sql.SQL("drop view if exists {}").format(sql.Identifier("shortlist", view))


def _view_name(table: str) -> str:
    name = "source_" + re.sub(r"\W", "_", table.lower())
    return name.encode()[:_LONGEST_VIEW_NAME].decode(errors="ignore")


def keep_source(
    connection: psycopg.Connection[Any],
    events: str,
    items: str | None,
    wish: Wish,
    increasing: str | None,
) -> Source:
    """Make a table a source, or return what it is; what is said now goes over what was said.

    A source whose mapping changes is read from its start by the next pass.

    Raises
    ------
    InputError
        There is no such table or column, or its type does not fit.
    """
    with connection.transaction():
        kinds = columns_of(connection, events)
        row = connection.execute(_SELECT + "where events_table = %s", [events]).fetchone()
        known = None if row is None else _source(row)
        if known is not None:
            wish = _over(wish, known.wish)
            items, increasing = items or known.items, increasing or known.increasing
            is_same = (wish, items, increasing) == (known.wish, known.items, known.increasing)
            if is_same and _is_there(connection, known.view):
                return known
            connection.execute(_drop(known.view))
        view = _view_name(events)
        names = "select events_table from shortlist.sources where view_name = %s"
        taken = connection.execute(names, [view]).fetchone()
        if taken is not None and taken[0] != events:
            raise InputError(
                f"table {events!r}: the view {view!r} belongs to another table, of the name"
                f" {taken[0]!r}: make a view of your own with another name and load that"
            )
        wish = _make_view(connection, events, kinds, view, wish, increasing)
        mapping = Jsonb(
            {name: getattr(wish, name) for name in ("columns", "time_unit", "event_type")}
        )
        connection.execute(_KEEP, [events, view, items, mapping, increasing])
    return Source(events, view, items, wish, increasing, None, None, [], None)


def _make_view(
    connection: psycopg.Connection[Any],
    table: str,
    kinds: dict[str, str],
    view: str,
    wish: Wish,
    increasing: str | None,
) -> Wish:
    """Make the view, and return the wish with the unit of time settled."""
    mapping = resolve(table, list(kinds), wish)
    if increasing is not None:
        _refuse_growth(connection, table, kinds, increasing)
    at, unit = _time(connection, mapping, table, kinds[mapping.occurred_at])
    nothing = sql.SQL("null")

    def column(name: str | None) -> sql.Composable:
        return sql.Identifier(name) if name else nothing

    def text(name: str | None) -> sql.Composable:
        # 1.50 and 1.5 are one number, so they are one id.
        form = "trim_scale({})::text" if name and kinds[name] == "numeric" else "{}::text"
        return sql.SQL(form).format(column(name))

    connection.execute(
        sql.SQL(_VIEW).format(
            view=sql.Identifier("shortlist", view),
            user_id=text(mapping.user_id),
            item_id=text(mapping.item_id),
            occurred_at=at,
            value=sql.SQL("{}::double precision").format(column(mapping.value)),
            event_type=sql.SQL("coalesce(nullif({}, ''), {})").format(
                text(mapping.event_type), sql.Literal(mapping.default_type)
            ),
            event_id=sql.SQL("nullif({}, '')").format(text(mapping.event_id)),
            place=column(increasing),
            table=table_name(table),
        )
    )
    return replace(wish, time_unit=unit)


def _refuse_growth(
    connection: psycopg.Connection[Any], table: str, kinds: dict[str, str], increasing: str
) -> None:
    kind = kinds.get(increasing)
    if kind not in GROWING:
        problem = "is missing" if kind is None else f"is of type {kind}"
        raise InputError(
            f"table {table!r}: column {increasing!r}, named by --increasing, {problem}, expected"
            " one of whole numbers or times that the database gives to each new row"
        )
    relation = connection.execute(
        "select relkind::text from pg_class where oid = to_regclass(%s)",
        [table_name(table).as_string(connection)],
    ).fetchone()
    if relation in (("f",), ("m",)):
        raise InputError(
            f"table {table!r}: rows come into a materialized view or a foreign table long after"
            " their ids were given out: leave --increasing out"
        )


def _time(
    connection: psycopg.Connection[Any], mapping: Mapping, table: str, kind: str
) -> tuple[sql.Composable, TimeUnit]:
    """Return the time as timestamptz, and the unit of numbers; a plain timestamp counts as UTC."""
    column = sql.Identifier(mapping.occurred_at)
    if kind == "timestamp with time zone":
        return column, "auto"
    if kind in ("timestamp without time zone", "date"):
        return sql.SQL("({}::timestamp at time zone 'utc')").format(column), "auto"
    if kind not in _NUMBERS:
        raise InputError(
            f"table {table!r}: column {mapping.occurred_at!r} is of type {kind}, expected a"
            " timestamp or a number; make a view that casts it"
        )
    sample = connection.execute(
        sql.SQL("select {}::text from {} where {} is not null limit 1000").format(
            column, table_name(table), column
        )
    ).fetchall()
    if not sample and mapping.time_unit == "auto":
        raise InputError(
            f"table {table!r}: no row tells the unit of {mapping.occurred_at!r}: add --time-unit s,"
            " ms or us"
        )
    unit = cast(TimeUnit, mapping.with_unit([row[0] for row in sample]).time_unit)
    # to_timestamp would fail beyond; such a time is none that counts.
    expression = sql.SQL(
        "case when {0} / {1} between 0 and 1e11 then to_timestamp(({0} / {1})::float8) end"
    ).format(column, sql.Literal(_UNITS[unit]))
    return expression, unit
