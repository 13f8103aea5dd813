"""Writing events: one statement for each batch.

Every row of a batch gets its own answer; a bad one never keeps the others from being stored.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psycopg
import uuid_utils
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from features.errors import DatabaseUnavailable
from features.ids import EVENT_TYPE_LENGTH, ID_LENGTH, id_problem
from features.real import is_float32, is_moment, shown, to_float32
from features.retry import run_async

Pool = AsyncConnectionPool[AsyncConnection[Any]]
Status = Literal["accepted", "duplicate", "rejected"]

MOST_EVENT_TYPES = 1000
"""Kinds of events that there may be; a row with one more is refused."""

_FUTURE_S = 300.0
# A user who is erased while an event of theirs is stored is made anew at the next try.
_TRIES = 3
_STORED: dict[str, Status] = {"accepted": "accepted", "duplicate": "duplicate"}


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event to store.

    Attributes
    ----------
    user_id, item_id : str
        External ids; an unknown user is created, an unknown item is refused.
    event_type : str
        Such as ``view``, ``click``, ``purchase``, ``rating``.
    value : float or None
        Strength, in the unit of the data.
    occurred_at : float or None
        Unix seconds; None means now. Up to five minutes ahead counts as now, since clocks
        differ.
    event_id : str or None
        Makes a repeated call harmless; None gives it a new one.
    """

    user_id: str
    item_id: str
    event_type: str = "interaction"
    value: float | None = None
    occurred_at: float | None = None
    event_id: str | None = None


@dataclass(frozen=True, slots=True)
class EventResult:
    """What became of one event; `reason` says why it was rejected, ``code: detail``."""

    event_id: str
    status: Status
    reason: str | None = None


# A user or type that another transaction creates at the same moment is invisible to this
# statement's snapshot; "do update" waits for that transaction and returns the key all the same.
# A user whom another transaction erases at the same moment has no row once it is done: such rows
# come back as "again". Ids are stored in their own order, so that no two batches wait for each
# other in a circle; events in the order of the batch.
_RECORD_EVENTS: str = """
with incoming as (
    select * from unnest(
        %(event_ids)s::text[], %(user_ids)s::text[], %(item_ids)s::text[], %(event_types)s::text[],
        %(values)s::real[], %(times)s::double precision[]
    ) with ordinality as incoming (
        event_id, user_id, item_id, event_type, value, occurred_at, position
    )
),
valid as (
    select incoming.*, items.item_key
    from incoming inner join items on incoming.item_id = items.item_id
),
new_types as (
    insert into event_types (event_type)
    select distinct valid.event_type from valid
    where
        not exists (select from event_types where event_types.event_type = valid.event_type)
        and (select count(*) from event_types) < %(most_types)s
    order by valid.event_type
    on conflict (event_type) do update set event_type = excluded.event_type
    returning event_type_key, event_type
),
types as (
    select event_type_key, event_type from event_types
    union all
    select event_type_key, event_type from new_types
),
typed as (
    select valid.*, types.event_type_key
    from valid inner join types on valid.event_type = types.event_type
),
new_users as (
    insert into users (user_id)
    select distinct typed.user_id from typed
    where not exists (select from users where users.user_id = typed.user_id)
    order by typed.user_id
    on conflict (user_id) do update set user_id = excluded.user_id
    returning user_key, user_id
),
known_users as (
    select user_key, user_id from users where user_id = any(%(user_ids)s::text[])
    for key share
),
keyed as (
    select typed.*, known_users.user_key
    from typed inner join known_users on typed.user_id = known_users.user_id
    union all
    select typed.*, new_users.user_key
    from typed inner join new_users on typed.user_id = new_users.user_id
),
firsts as (
    select distinct on (event_id) * from keyed
    order by event_id, position
),
fresh as (
    insert into event_ids (event_id)
    select event_id from firsts
    order by event_id
    on conflict (event_id) do nothing
    returning event_id
),
accepted as (
    select firsts.* from firsts inner join fresh on firsts.event_id = fresh.event_id
),
stored as (
    insert into interactions (user_key, item_key, event_type_key, value, occurred_at, event_id)
    select
        user_key, item_key, event_type_key, value,
        least(coalesce(to_timestamp(occurred_at), now()), now()), event_id
    from accepted
    order by position
)
select
    valid.position,
    case
        when accepted.position is not null then 'accepted'
        when keyed.position is not null then 'duplicate'
        when typed.position is not null then 'again'
        else 'too many types'
    end
from valid
left join typed on valid.position = typed.position
left join keyed on valid.position = keyed.position
left join accepted on valid.position = accepted.position
"""


def _event_problem(row: EventRow, now: float) -> str | None:
    """Return why an event cannot be stored, ``code: detail``, or None."""
    for name, text, longest in (
        ("user_id", row.user_id, ID_LENGTH),
        ("item_id", row.item_id, ID_LENGTH),
        ("event_type", row.event_type, EVENT_TYPE_LENGTH),
        ("event_id", row.event_id, ID_LENGTH),
    ):
        problem = None if text is None else id_problem(text, longest)
        if problem is not None:
            return f"invalid_{name}: {name} {problem}"
    if row.value is not None and not is_float32(row.value):
        return f"invalid_value: value is {shown(row.value)}, expected a finite 32-bit number"
    if row.occurred_at is not None:
        if not is_moment(row.occurred_at):
            return (
                f"invalid_occurred_at: occurred_at is {shown(row.occurred_at)}, expected unix"
                " seconds"
            )
        if row.occurred_at < 0:
            return f"invalid_occurred_at: occurred_at is {shown(row.occurred_at)}, before 1970"
        if row.occurred_at > now + _FUTURE_S:
            ahead = row.occurred_at - now
            return f"future_occurred_at: occurred_at lies {ahead:.0f} s ahead, at most 300 allowed"
    return None


class _EventBatch:
    """One batch on its way: the rows that still need the database, and the answers so far."""

    def __init__(self, rows: Sequence[EventRow]) -> None:
        now = time.time()
        self._results: list[EventResult | None] = []
        self._left: list[tuple[int, str, EventRow]] = []
        self._tries = 0
        for position, row in enumerate(rows):
            event_id = str(uuid_utils.uuid7()) if row.event_id is None else row.event_id
            problem = _event_problem(row, now)
            if problem is None:
                self._results.append(None)
                self._left.append((position, event_id, row))
            else:
                self._results.append(EventResult(event_id, "rejected", problem))

    def __bool__(self) -> bool:
        return bool(self._left)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the statement takes: the rows that are left, as columns."""
        rows = [row for _, _, row in self._left]
        return {
            "event_ids": [event_id for _, event_id, _ in self._left],
            "user_ids": [row.user_id for row in rows],
            "item_ids": [row.item_id for row in rows],
            "event_types": [row.event_type for row in rows],
            # Whole numbers that a caller gives as int would make lists of two types.
            "values": [None if row.value is None else float(to_float32(row.value)) for row in rows],
            "times": [None if row.occurred_at is None else float(row.occurred_at) for row in rows],
            "most_types": MOST_EVENT_TYPES,
        }

    def take(self, answers: Sequence[tuple[int, str]]) -> None:
        """Take what the database said: (1-based position, outcome) of each row with an item.

        Raises
        ------
        DatabaseUnavailable
            Users of the batch were erased at each of several tries.
        """
        outcomes = dict(answers)
        again = []
        for at, (position, event_id, row) in enumerate(self._left, start=1):
            outcome = outcomes.get(at, "")
            if outcome == "again":
                again.append((position, event_id, row))
            elif outcome in _STORED:
                self._results[position] = EventResult(event_id, _STORED[outcome])
            elif not outcome:
                reason = f"unknown_item: no item has the id {row.item_id!r}"
                self._results[position] = EventResult(event_id, "rejected", reason)
            else:
                reason = (
                    f"too_many_event_types: {row.event_type!r} would be a new type beyond the"
                    f" {MOST_EVENT_TYPES} that there are"
                )
                self._results[position] = EventResult(event_id, "rejected", reason)
        self._left = again
        self._tries += 1
        if again and self._tries == _TRIES:
            raise DatabaseUnavailable(
                f"user {again[0][2].user_id!r} was erased at each of {_TRIES} tries to store"
                " an event; send it again"
            )

    def results(self) -> list[EventResult]:
        """Return the answers, once no row is left."""
        return [result for result in self._results if result is not None]


def record_events(
    connection: psycopg.Connection[Any], rows: Sequence[EventRow]
) -> list[EventResult]:
    """Store a batch of events; see :func:`record_events_async`, which the service uses."""
    batch = _EventBatch(rows)
    while batch:
        with connection.transaction():
            batch.take(connection.execute(_RECORD_EVENTS, batch.parameters).fetchall())
    return batch.results()


async def record_events_async(pool: Pool, rows: Sequence[EventRow]) -> list[EventResult]:
    """Store a batch of events with one statement; returns after the commit.

    Parameters
    ----------
    pool : AsyncConnectionPool
        Open pool of :func:`features.database.open_pool`.
    rows : sequence of EventRow
        In the order in which they happened, as far as their times are equal.

    Returns
    -------
    list of EventResult
        One for each row, in order. ``duplicate``: an event with this id is stored already, or
        stands earlier in the batch, and stays as it is. ``rejected``: the reason starts with a
        code, such as ``unknown_item``.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached. The batch may be sent again: events with an id are
        stored once.
    """
    batch = _EventBatch(rows)
    while batch:
        batch.take(await run_async(pool, _RECORD_EVENTS, batch.parameters))
    return batch.results()
