"""Load a data set into PostgreSQL: good rows are kept, each bad one is reported.

All in one transaction: rows are staged by COPY, then joined to their keys by SQL.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import psycopg

from features.presets import Preset, Source, find_source, read_events, read_items
from features.rows import RejectedRow
from features.schema import NOT_APPLIED, not_applied

__all__ = ["LoadReport", "RejectedRow", "load"]

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, what is done and what there is in all (bytes of a file)."""

_SECONDS_A_DAY = 86_400

_STAGE = """
create temp table staged_items (
    line bigint, item_id text, title text, categories text[], attributes jsonb,
    created double precision
) on commit drop;
create temp table staged_events (
    line bigint, user_id text, item_id text, event_type text, value real, moment bigint,
    event_id text
) on commit drop;
"""

# A line that says the same as an earlier one is a duplicate; the earliest is kept.
_KEEP_ITEMS = """
with doubles as (
    select line, row_number() over (partition by item_id order by line) as copy
    from staged_items
)
delete from staged_items using doubles
where staged_items.line = doubles.line and doubles.copy > 1
returning staged_items.line, staged_items.item_id
"""

# created_at is never later than the item's first event.
_INSERT_ITEMS = """
with first_events as (
    select item_id, min(moment) / 1e6 as created from staged_events group by item_id
)
insert into items (item_id, title, categories, attributes, created_at)
select
    staged_items.item_id, staged_items.title, staged_items.categories, staged_items.attributes,
    to_timestamp(least(staged_items.created, first_events.created) + %(shift)s)
from staged_items left join first_events using (item_id)
order by staged_items.line
on conflict (item_id) do update set
    title = excluded.title, categories = excluded.categories,
    attributes = excluded.attributes,
    created_at = least(items.created_at, excluded.created_at)
where (items.title, items.categories, items.attributes, items.created_at) is distinct from
    (excluded.title, excluded.categories, excluded.attributes,
     least(items.created_at, excluded.created_at))
"""

_INSERT_BARE_ITEMS = """
insert into items (item_id, created_at)
select item_id, to_timestamp(min(moment) / 1e6 + %(shift)s)
from staged_events
group by item_id
order by min(line)
on conflict (item_id) do nothing
"""

_UNKNOWN_ITEMS = """
delete from staged_events
where not exists (select from items where items.item_id = staged_events.item_id)
returning line, item_id
"""

_INSERT_USERS = """
insert into users (user_id, created_at)
select user_id, to_timestamp(min(moment) / 1e6 + %(shift)s)
from staged_events
group by user_id
order by min(line)
on conflict (user_id) do nothing
"""

_INSERT_EVENT_TYPES = """
insert into event_types (event_type)
select event_type from staged_events
group by event_type
order by min(line)
on conflict (event_type) do nothing
"""

_KEYED = """
create temp table keyed_events on commit drop as
select
    staged_events.line, users.user_key, items.item_key, event_types.event_type_key,
    staged_events.value, to_timestamp(staged_events.moment / 1e6 + %(shift)s) as occurred_at,
    staged_events.event_id
from staged_events
inner join users using (user_id)
inner join items using (item_id)
inner join event_types using (event_type)
"""

# An event with an id is the same as another with that id, one without an id the same as one
# of that user, item, type and time.
_DUPLICATES = """
with doubles as (
    select
        line,
        case
            when event_id is null then row_number() over (
                partition by event_id is null, user_key, item_key, event_type_key, occurred_at
                order by line
            )
            else row_number() over (partition by event_id order by line)
        end > 1 as repeated
    from keyed_events
)
delete from keyed_events using doubles
where keyed_events.line = doubles.line and doubles.repeated
returning keyed_events.line
"""

_ALREADY_LOADED = """
delete from keyed_events
where
    (event_id is null and exists (
        select from interactions
        where interactions.user_key = keyed_events.user_key
        and interactions.occurred_at = keyed_events.occurred_at
        and interactions.item_key = keyed_events.item_key
        and interactions.event_type_key = keyed_events.event_type_key
    ))
    or exists (select from event_ids where event_ids.event_id = keyed_events.event_id)
"""

# Ids grow in the order of the lines: that is the order of events of the same second.
_INSERT_EVENTS = """
with new_ids as (
    insert into event_ids (event_id)
    select event_id from keyed_events where event_id is not null
    on conflict (event_id) do nothing
    returning event_id
)
insert into interactions (user_key, item_key, event_type_key, value, occurred_at, event_id)
select user_key, item_key, event_type_key, value, occurred_at, event_id
from keyed_events
where event_id is null or event_id in (select event_id from new_ids)
order by line
"""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did.

    Attributes
    ----------
    users, items, interactions : int
        Rows that are new (or, for items, changed).
    rejected : int
        Rows left out.
    rejects : list of RejectedRow
        Every one of them, items first, in the order of the lines.
    already_loaded : int
        Events that the database had before.
    shifted_days : int
        Days by which all times were moved (``rebase_to_now``).
    seconds : float
        Duration.
    """

    users: int
    items: int
    interactions: int
    rejected: int
    rejects: list[RejectedRow]
    already_loaded: int
    shifted_days: int
    seconds: float


def _ignore(step: str, done: int, total: int) -> None:
    """Report progress to nobody."""


def load(
    connection: psycopg.Connection[Any],
    source: Path | str,
    preset: Preset = "auto",
    rebase_to_now: bool = False,
    progress: Progress | None = None,
) -> LoadReport:
    """Load a data set; loading it twice changes nothing.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection; committed on success, rolled back on failure.
    source : Path or "sample"
        Folder, or a file of events whose folder may hold the items; ``"sample"`` is the
        MovieLens sample of this package.
    preset : {"auto", "movielens", "ml-1m", "csv"}
        Layout of the files; ``auto`` tells it by their names.
    rebase_to_now : bool
        Move all times by a whole number of days so that the newest event lies in the last 24
        hours; the attribute ``year`` stays.
    progress : callable, optional
        Called as ``progress(step, done, total)``, in bytes of the file on disk.

    Returns
    -------
    LoadReport

    Raises
    ------
    InputError
        A file is missing, empty or damaged, or lacks a column: nothing was loaded.
    SchemaError
        The schema was not applied.
    """
    if source == "sample":
        with as_file(files("features") / "sample") as folder:
            return load(connection, folder, "movielens", rebase_to_now, progress)
    found = find_source(Path(source), preset)
    try:
        with connection.transaction():
            return _load(connection, found, rebase_to_now, progress or _ignore)
    except NOT_APPLIED as error:
        raise not_applied(error) from error


def _stage(
    connection: psycopg.Connection[Any],
    source: Source,
    now: float,
    rejects: list[RejectedRow],
    progress: Progress,
) -> None:
    connection.execute(_STAGE)
    cursor = connection.cursor()
    if source.items is not None:
        size = source.items.stat().st_size
        with cursor.copy("copy staged_items from stdin") as copy:
            copy.set_types(["int8", "text", "text", "text[]", "text", "float8"])
            for item in read_items(
                source, now, rejects, lambda done: progress("items", done, size)
            ):
                attributes = json.dumps(item.attributes)
                copy.write_row(
                    (item.line, item.item_id, item.title, item.categories, attributes, item.created)
                )
        progress("items", size, size)
    events = source.events.stat().st_size
    with cursor.copy("copy staged_events from stdin") as copy:
        for event in read_events(
            source, now, rejects, lambda done: progress("interactions", done, events)
        ):
            copy.write_row(event)
    progress("interactions", events, events)


def _shift_days(connection: psycopg.Connection[Any], now: float) -> int:
    row = connection.execute("select max(moment) / 1e6 from staged_events").fetchone()
    assert row is not None
    return 0 if row[0] is None else int((now - float(row[0])) // _SECONDS_A_DAY)


def _load(
    connection: psycopg.Connection[Any], source: Source, rebase: bool, progress: Progress
) -> LoadReport:
    started = time.perf_counter()
    now = time.time()
    rejects: list[RejectedRow] = []

    def run(statement: str) -> psycopg.Cursor[Any]:
        return connection.execute(statement, parameters if "%(" in statement else None)

    connection.execute("set local search_path = shortlist, pg_temp")
    _stage(connection, source, now, rejects, progress)
    days = _shift_days(connection, now) if rebase else 0
    parameters = {"shift": days * _SECONDS_A_DAY}
    run("analyze staged_events")
    if source.items is not None:
        for line, item_id in run(_KEEP_ITEMS).fetchall():
            reason = f"{item_id!r} stands on an earlier line too"
            rejects.append(RejectedRow(source.items.name, line, "", reason))
    items = run(_INSERT_ITEMS).rowcount
    if source.items is None:
        items += run(_INSERT_BARE_ITEMS).rowcount
    else:
        for line, item_id in run(_UNKNOWN_ITEMS).fetchall():
            reason = f"item {item_id!r} is neither in {source.items.name} nor in the database"
            rejects.append(RejectedRow(source.events.name, line, "item", reason))
    users = run(_INSERT_USERS).rowcount
    run(_INSERT_EVENT_TYPES)
    run(_KEYED)
    for (line,) in run(_DUPLICATES).fetchall():
        reason = "says the same as an earlier line"
        rejects.append(RejectedRow(source.events.name, line, "", reason))
    run("analyze keyed_events")
    already_loaded = run(_ALREADY_LOADED).rowcount
    interactions = run(_INSERT_EVENTS).rowcount
    run("analyze users, items, interactions")
    if source.items is not None:
        first = source.items.name
        rejects.sort(key=lambda row: (row.file != first, row.line))
    else:
        rejects.sort(key=lambda row: row.line)
    return LoadReport(
        users=users,
        items=items,
        interactions=interactions,
        rejected=len(rejects),
        rejects=rejects,
        already_loaded=already_loaded,
        shifted_days=days,
        seconds=time.perf_counter() - started,
    )
