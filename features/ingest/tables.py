"""Events from tables that are in the database already: PostgreSQL moves the rows itself.

A pass reads the rows of the source that may be new (see :mod:`features.ingest.reading`), compares
them with what is stored by user, item, type and time, or by their event id, and adds the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import errors, sql

from features import partitions
from features.errors import DatabaseUnavailable, InputError, ShortlistError
from features.ingest.keys import refuse_types
from features.ingest.ledger import LOCK
from features.ingest.mapping import Wish, resolve
from features.ingest.reading import Reading, begin_reading
from features.ingest.sources import (
    Source,
    columns_of,
    keep_source,
    list_sources,
    sources_lock,
    table_name,
)
from features.schema import NOT_APPLIED, not_applied

Progress = Callable[[str, int, int], None]

_ATTEMPTS = 4

# One statement reads all, so that what is read is what one moment saw. problem: why a file would
# not be accepted for such a row.
_READ = """
create temp table incoming on commit drop as
select
    user_id, item_id, occurred_at, event_type, event_id,
    case when abs(value) < 1.1754943508222875e-38 then 0 else value end as value,
    case
        when user_id is null or char_length(user_id) not between 1 and 256
            then 'the user''s id is empty or longer than 256 characters'
        when item_id is null or char_length(item_id) not between 1 and 256
            then 'the item''s id is empty or longer than 256 characters'
        when char_length(event_type) > 64 then 'the event type is longer than 64 characters'
        when char_length(event_id) > 256 then 'the event id is longer than 256 characters'
        when abs(value) > 3.4028234663852886e38 then 'the value is not a finite 32-bit number'
        when occurred_at is null then 'there is no time'
        when occurred_at < 'epoch' then 'the time lies before 1970'
        when occurred_at > now() + interval '5 minutes' then 'the time lies in the future'
        when not ({of_known_items}) then 'there is no such item'
    end as problem
from {view} as source_events
where {condition}
"""
_ANY_ITEM = "true"
_KNOWN_ITEM = "exists (select from items where items.item_id = source_events.item_id)"

_REFUSE = """
with refused as (delete from incoming where problem is not null returning problem)
select problem, count(*) from refused group by problem order by count(*) desc, problem
"""

# A refresh, an erasure and retention wait until this is stored: what they say holds for it.
_REFRESH_LOCK = "select pg_advisory_xact_lock(hashtextextended('shortlist.refresh', 0))"

# The source still has the rows of who was erased, and those whose raw events were dropped.
_LEAVE_ERASED = """
delete from incoming
using erasures
where
    erasures.user_hash = sha256(convert_to(incoming.user_id, 'utf8'))
    and incoming.occurred_at <= erasures.erased_at
"""
_LEAVE_DROPPED = """
delete from incoming using refresh_point where incoming.occurred_at < refresh_point.raw_since
"""

_COUNT_TYPES = """
select count(*) from (select event_type from event_types union select event_type from incoming)
"""

_TYPES = """
insert into event_types (event_type)
select distinct event_type from incoming order by event_type
on conflict (event_type) do nothing
"""

_USERS = """
insert into users (user_id, created_at)
select user_id, min(occurred_at) from incoming
where not exists (select from users where users.user_id = incoming.user_id)
group by user_id order by user_id
on conflict (user_id) do nothing
"""

_MAKE_ITEMS = """
insert into items (item_id, created_at)
select item_id, min(occurred_at) from incoming
where not exists (select from items where items.item_id = incoming.item_id)
group by item_id order by item_id
on conflict (item_id) do nothing
"""

_LOWER_ITEMS = """
with firsts as (
    select item_id, min(occurred_at) as first_at from incoming group by item_id
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
        users.user_key, items.item_key, event_types.event_type_key, incoming.occurred_at,
        incoming.event_id
    )
        users.user_key, items.item_key, event_types.event_type_key, incoming.value::real,
        incoming.occurred_at, incoming.event_id
    from incoming
    inner join users on incoming.user_id = users.user_id
    inner join items on incoming.item_id = items.item_id
    inner join event_types on incoming.event_type = event_types.event_type
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
    select distinct event_id from fresh where event_id is not null order by event_id
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
    """What a pass over a table did.

    Attributes
    ----------
    source : str
        The table.
    read : int
        Rows that were read.
    users, items, interactions : int
        Rows that are new.
    rejected : int
        Rows that no event can be made of.
    reasons : dict of str to int
        Why, and how many of them.
    left_out : int
        Rows of people who were erased since, and of the time whose raw events were dropped.
    seconds : float
        Duration.
    """

    source: str
    read: int
    users: int
    items: int
    interactions: int
    rejected: int
    reasons: dict[str, int]
    left_out: int
    seconds: float


@dataclass(slots=True)
class _Counts:
    read: int = 0
    users: int = 0
    items: int = 0
    interactions: int = 0
    left_out: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def _load_items(connection: psycopg.Connection[Any], table: str) -> int:
    with connection.transaction():
        connection.execute("set local search_path = shortlist, pg_temp")
        connection.execute(LOCK)
        kinds = columns_of(connection, table)
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
            table=table_name(table),
        )
        return connection.execute(statement).rowcount


def _move(connection: psycopg.Connection[Any], reading: Reading, report: Progress) -> _Counts:
    """Read, compare and store, in one transaction."""
    source, counts = reading.source, _Counts()
    with connection.transaction():
        connection.execute("set local search_path = shortlist, pg_temp")
        report("rows", 0, 0)
        counts.read = connection.execute(
            sql.SQL(_READ).format(
                of_known_items=sql.SQL(_KNOWN_ITEM if source.items else _ANY_ITEM),
                view=sql.Identifier("shortlist", source.view),
                condition=reading.condition,
            )
        ).rowcount
        counts.reasons = dict(connection.execute(_REFUSE).fetchall())
        connection.execute("analyze incoming")
        connection.execute(_REFRESH_LOCK)
        connection.execute(LOCK)
        for statement in (_LEAVE_ERASED, _LEAVE_DROPPED):
            counts.left_out += connection.execute(statement).rowcount
        report("users", 0, 0)
        (types,) = connection.execute(_COUNT_TYPES).fetchone() or (0,)
        refuse_types(types)
        connection.execute(_TYPES)
        counts.users = connection.execute(_USERS).rowcount
        report("items", 0, 0)
        if not source.items:
            counts.items = connection.execute(_MAKE_ITEMS).rowcount
        connection.execute(_LOWER_ITEMS)
        report("interactions", 0, 0)
        counts.interactions = connection.execute(_INSERT).rowcount
        reading.advance(connection)
    return counts


def _pass(connection: psycopg.Connection[Any], source: Source, report: Progress) -> TableReport:
    """Bring in what is new; the caller holds the lock of sources."""
    started = time.perf_counter()
    partitions.ensure(connection)
    made = _load_items(connection, source.items) if source.items else 0
    reading = begin_reading(connection, source)
    attempt = 1
    while True:
        try:
            counts = _move(connection, reading, report)
            break
        except errors.DeadlockDetected as error:
            if attempt == _ATTEMPTS:
                raise DatabaseUnavailable(
                    f"table {source.events!r}: lost {attempt} deadlocks; load it again"
                ) from error
        except (errors.InvalidTextRepresentation, errors.CannotCoerce) as error:
            raise InputError(
                f"table {source.events!r}: {error.diag.message_primary}; make a view"
            ) from error
        attempt += 1
    if source.read_from is None and counts.interactions:
        with connection.transaction():
            connection.execute("analyze shortlist.users, shortlist.items, shortlist.interactions")
    return TableReport(
        source=source.events,
        read=counts.read,
        users=counts.users,
        items=made + counts.items,
        interactions=counts.interactions,
        rejected=sum(counts.reasons.values()),
        reasons=counts.reasons,
        left_out=counts.left_out,
        seconds=time.perf_counter() - started,
    )


def load_table(
    connection: psycopg.Connection[Any],
    events: str,
    items: str | None = None,
    wish: Wish | None = None,
    progress: Progress | None = None,
    *,
    increasing: str | None = None,
    again: bool = False,
) -> TableReport:
    """Make a table a source of events, and add what is new in it to the interactions.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection to the database that holds the tables; a pass is one transaction.
    events : str
        Table or view with users, items and times, such as ``public.ratings``.
    items : str, optional
        Table or view with items: id, and ``title`` or ``name``. Without it, items are made of
        the events; with it, events of items that the database does not have are rejected.
    wish : Wish, optional
        Which column is what, where it is not called by a usual name. What was said before holds
        until something else is said.
    progress : callable, optional
        Called as ``progress(step, done, total)``.
    increasing : str, optional
        Column that the database fills, in each new row with a higher value or a later time: the
        next pass reads only the rows that may be new. Without one, each pass compares all rows.
    again : bool
        Compare all rows this time.

    Raises
    ------
    InputError
        There is no such table or column, its type does not fit, or it has too many event types.
    DatabaseUnavailable
        Others wrote the same rows, again and again.
    SchemaError
        The schema was not applied.
    """
    try:
        with sources_lock(connection):
            source = keep_source(connection, events, items, wish or Wish(), increasing)
            if again:
                source = replace(source, read_from=None)
            return _pass(connection, source, progress or (lambda step, done, total: None))
    except NOT_APPLIED as error:
        raise not_applied(error) from error


def follow(connection: psycopg.Connection[Any]) -> list[TableReport | ShortlistError]:
    """Add what is new in the sources that have an increasing column.

    A source that fails does not keep the others from being read. While another process reads
    sources, nothing is done.

    Returns
    -------
    list of TableReport or ShortlistError
        What a pass over each source did, or why it failed.
    """
    done: list[TableReport | ShortlistError] = []
    with sources_lock(connection, wait=False) as had:
        for source in list_sources(connection) if had else []:
            if source.increasing is None:
                continue
            try:
                done.append(_pass(connection, source, lambda step, done, total: None))
            except ShortlistError as error:
                done.append(error)
            except errors.QueryCanceled:
                raise
            except psycopg.Error as error:
                if connection.closed:
                    raise
                done.append(InputError(f"table {source.events!r}: {error.diag.message_primary}"))
    return done
