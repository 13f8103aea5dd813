"""Tables that are in the database already, as the source: no file, no copy on the way.

A view gives the table's rows the names and types of events; PostgreSQL moves them itself. Running
it again adds only what is not there: the rows are compared by user, item, type and time, or by
their event id.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import errors, sql

from features import partitions
from features.errors import InputError
from features.ingest.blocks import LOCK
from features.ingest.keys import refuse_types
from features.ingest.mapping import Mapping, Wish, resolve

Progress = Callable[[str, int, int], None]

_COLUMNS = """
select attname, format_type(atttypid, null)
from pg_attribute
where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped
order by attnum
"""
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}
_NUMBERS = ("smallint", "integer", "bigint", "numeric", "real", "double precision")

_VIEW = """
create or replace temp view source_events as
select
    {user_id}::text as user_id, {item_id}::text as item_id, {occurred_at} as occurred_at,
    {value} as value, {event_type} as event_type, {event_id} as event_id
from {table}
"""

# What a file would be accepted for.
_GOOD = """
create or replace temp view good_events as
select
    user_id, item_id, occurred_at, event_type, event_id,
    case when abs(value) < 1.1754943508222875e-38 then 0 else value end as value
from source_events
where
    char_length(user_id) between 1 and 256
    and char_length(item_id) between 1 and 256
    and char_length(event_type) between 1 and 64
    and (event_id is null or char_length(event_id) between 1 and 256)
    and (value is null or abs(value) <= 3.4028234663852886e38)
    and occurred_at >= 'epoch' and occurred_at <= now() + interval '5 minutes'
    and {of_known_items}
"""
_ANY_ITEM = "true"
_KNOWN_ITEM = "exists (select from items where items.item_id = source_events.item_id)"

_BAD = "select (select count(*) from source_events) - (select count(*) from good_events)"

_COUNT_TYPES = """
select count(*) from (select event_type from event_types union select event_type from good_events)
"""

_TYPES = """
insert into event_types (event_type)
select distinct event_type from good_events
on conflict (event_type) do nothing
"""

_USERS = """
insert into users (user_id, created_at)
select user_id, min(occurred_at) from good_events group by user_id order by user_id
on conflict (user_id) do nothing
"""

_MAKE_ITEMS = """
insert into items (item_id, created_at)
select item_id, min(occurred_at) from good_events group by item_id order by item_id
on conflict (item_id) do nothing
"""

_LOWER_ITEMS = """
with firsts as (
    select item_id, min(occurred_at) as first_at from good_events group by item_id
)
update items
set created_at = firsts.first_at
from firsts
where
    items.item_id = firsts.item_id
    and (items.created_at is null or items.created_at > firsts.first_at)
"""

# Rows without an id are the same by user, item, type and time; distinct on keeps one of them.
_INSERT = """
with keyed as (
    select distinct on (
        users.user_key, items.item_key, event_types.event_type_key, good_events.occurred_at,
        good_events.event_id
    )
        users.user_key, items.item_key, event_types.event_type_key, good_events.value::real,
        good_events.occurred_at, good_events.event_id
    from good_events
    inner join users on good_events.user_id = users.user_id
    inner join items on good_events.item_id = items.item_id
    inner join event_types on good_events.event_type = event_types.event_type
),
fresh as (
    select keyed.* from keyed
    where event_id is not null or not exists (
        select from interactions
        where
            interactions.user_key = keyed.user_key
            and interactions.occurred_at = keyed.occurred_at
            and interactions.item_key = keyed.item_key
            and interactions.event_type_key = keyed.event_type_key
    )
),
new_ids as (
    insert into event_ids (event_id)
    select distinct event_id from fresh where event_id is not null
    on conflict (event_id) do nothing
    returning event_id
),
named as (
    select distinct on (fresh.event_id) fresh.*
    from fresh inner join new_ids on fresh.event_id = new_ids.event_id
    order by fresh.event_id, fresh.occurred_at
)
insert into interactions (user_key, item_key, event_type_key, value, occurred_at, event_id)
select user_key, item_key, event_type_key, value, occurred_at, event_id
from (
    select * from fresh where event_id is null
    union all
    select * from named
) as events
order by user_key, occurred_at
"""

_ITEMS = """
insert into items (item_id, title, created_at)
select distinct on (item_id) {item_id}::text as item_id, {title}, {created_at}
from {table}
where char_length({item_id}::text) between 1 and 256
on conflict (item_id) do update set title = excluded.title
where items.title is distinct from excluded.title
"""


@dataclass(frozen=True, slots=True)
class TableReport:
    """What a load from a table did: new rows, and rows that no event can be made of."""

    users: int
    items: int
    interactions: int
    rejected: int
    reason: str
    seconds: float


def _name(table: str) -> sql.Composed:
    return sql.SQL(".").join(sql.Identifier(part) for part in table.split("."))


def _columns(connection: psycopg.Connection[Any], table: str) -> dict[str, str]:
    # Quoted: what is found here is what is read later, letter by letter.
    name = _name(table).as_string(connection)
    found = dict(connection.execute(_COLUMNS, [name]).fetchall())
    if not found:
        raise InputError(
            f"table {table!r}: there is none in this database; name it with its schema, as in"
            " public.ratings"
        )
    return found


def _time(
    connection: psycopg.Connection[Any], mapping: Mapping, table: str, kind: str
) -> sql.Composable:
    """Return the expression of the time as timestamptz; a plain timestamp counts as UTC."""
    column = sql.Identifier(mapping.occurred_at)
    if kind == "timestamp with time zone":
        return column
    if kind in ("timestamp without time zone", "date"):
        return sql.SQL("({}::timestamp at time zone 'utc')").format(column)
    if kind not in _NUMBERS:
        raise InputError(
            f"table {table!r}: column {mapping.occurred_at!r} is of type {kind}, expected a"
            " timestamp or a number; make a view that casts it"
        )
    sample = connection.execute(
        sql.SQL("select {}::text from {} where {} is not null limit 1000").format(
            column, _name(table), column
        )
    ).fetchall()
    unit = sql.Literal(_UNITS[mapping.with_unit([row[0] for row in sample]).time_unit])
    # to_timestamp would fail beyond; such a time is none that counts.
    return sql.SQL(
        "case when {0} / {1} between 0 and 1e11 then to_timestamp(({0} / {1})::float8) end"
    ).format(column, unit)


def _make_view(connection: psycopg.Connection[Any], table: str, wish: Wish) -> None:
    kinds = _columns(connection, table)
    mapping = resolve(table, list(kinds), wish)
    nothing = sql.SQL("null")
    kind = sql.Literal(mapping.default_type)
    connection.execute(
        sql.SQL(_VIEW).format(
            user_id=sql.Identifier(mapping.user_id),
            item_id=sql.Identifier(mapping.item_id),
            occurred_at=_time(connection, mapping, table, kinds[mapping.occurred_at]),
            value=sql.SQL("{}::double precision").format(
                sql.Identifier(mapping.value) if mapping.value else nothing
            ),
            event_type=sql.SQL("coalesce(nullif({}::text, ''), {})").format(
                sql.Identifier(mapping.event_type) if mapping.event_type else nothing, kind
            ),
            event_id=sql.SQL("nullif({}::text, '')").format(
                sql.Identifier(mapping.event_id) if mapping.event_id else nothing
            ),
            table=_name(table),
        )
    )


def _load_items(connection: psycopg.Connection[Any], table: str) -> int:
    kinds = _columns(connection, table)
    mapping = resolve(table, [*kinds, "user_id", "occurred_at"], Wish())
    title = next((name for name in ("title", "name") if name in kinds), None)
    created = "created_at" if kinds.get("created_at", "").startswith("timestamp") else None
    statement = sql.SQL(_ITEMS).format(
        item_id=sql.Identifier(mapping.item_id),
        title=sql.SQL("left({}::text, 1000)").format(sql.Identifier(title))
        if title
        else sql.SQL("null::text"),
        created_at=sql.SQL("{}::timestamptz").format(sql.Identifier(created))
        if created
        else sql.SQL("null::timestamptz"),
        table=_name(table),
    )
    return connection.execute(statement).rowcount


def load_table(
    connection: psycopg.Connection[Any],
    events: str,
    items: str | None,
    wish: Wish,
    progress: Progress | None = None,
) -> TableReport:
    """Add the rows of a table to the interactions; a second run adds only what is new.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection to the database that holds the tables; all is one transaction.
    events : str
        Table or view with users, items and times, such as ``public.ratings``.
    items : str, optional
        Table or view with items: id, and ``title`` or ``name``. Without it, items are made of
        the events; with it, events of items that the database does not have are rejected.
    wish : Wish
        Which column is what, where it is not called by a usual name.
    progress : callable, optional
        Called as ``progress(step, done, total)``.

    Raises
    ------
    InputError
        There is no such table or column, its type does not fit, or it has too many event types.
    """
    report = progress or (lambda step, done, total: None)
    started = time.perf_counter()
    partitions.ensure(connection)
    try:
        with connection.transaction():
            connection.execute("set local search_path = shortlist, pg_temp")
            connection.execute(LOCK)
            _make_view(connection, events, wish)
            made = _load_items(connection, items) if items else 0
            known = _KNOWN_ITEM if items else _ANY_ITEM
            connection.execute(sql.SQL(_GOOD).format(of_known_items=sql.SQL(known)))
            report("users", 0, 0)
            (types,) = connection.execute(_COUNT_TYPES).fetchone() or (0,)
            refuse_types(types)
            connection.execute(_TYPES)
            users = connection.execute(_USERS).rowcount
            report("items", 0, 0)
            if not items:
                made = connection.execute(_MAKE_ITEMS).rowcount
            connection.execute(_LOWER_ITEMS)
            report("interactions", 0, 0)
            stored = connection.execute(_INSERT).rowcount
            row = connection.execute(_BAD).fetchone()
            assert row is not None
            connection.execute("drop view good_events, source_events")
    except (errors.InvalidTextRepresentation, errors.CannotCoerce) as error:
        raise InputError(f"table {events!r}: {error.diag.message_primary}; make a view") from error
    with connection.transaction():
        connection.execute("analyze shortlist.users, shortlist.items, shortlist.interactions")
    return TableReport(
        users=users,
        items=made,
        interactions=stored,
        rejected=row[0],
        reason="an id is empty or too long, a value is not finite, a time is none, before 1970 or"
        " in the future, or there is no such item",
        seconds=time.perf_counter() - started,
    )
