"""What the service writes: events and impressions. One statement for each batch.

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

from features.ids import EVENT_TYPE_LENGTH, ID_LENGTH, id_problem
from features.real import is_float32, is_moment, shown, to_float32
from features.retry import run_async

Pool = AsyncConnectionPool[AsyncConnection[Any]]
Status = Literal["accepted", "duplicate", "rejected"]

_FUTURE_S = 300.0


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


@dataclass(frozen=True, slots=True)
class Impression:
    """One item that was shown.

    Attributes
    ----------
    rec_id : str
        UUID of the answer.
    position : int
        0-based place in it.
    user_id : str
        External id, known or not.
    item_key : int
        Key of the database.
    release, scenario, source : str
        Which release, for what page, from which candidate source.
    score : float or None
        Final score.
    served_at : float or None
        Unix seconds; None means now.
    """

    rec_id: str
    position: int
    user_id: str
    item_key: int
    release: str
    scenario: str | None = None
    source: str | None = None
    score: float | None = None
    served_at: float | None = None


# A user whom another transaction creates at the same moment is invisible to this statement's
# snapshot; "do update" waits for that transaction and returns the key all the same.
_RECORD_EVENTS: str = """
with incoming as (
    select * from unnest(
        %s::text[], %s::text[], %s::text[], %s::text[], %s::real[], %s::double precision[]
    ) with ordinality as incoming (
        event_id, user_id, item_id, event_type, value, occurred_at, position
    )
),
valid as (
    select incoming.*, items.item_key
    from incoming inner join items on incoming.item_id = items.item_id
),
new_users as (
    insert into users (user_id)
    select distinct valid.user_id from valid
    where not exists (select from users where users.user_id = valid.user_id)
    order by valid.user_id
    on conflict (user_id) do update set user_id = excluded.user_id
    returning user_key, user_id
),
keyed as (
    select valid.*, users.user_key from valid inner join users on valid.user_id = users.user_id
    union all
    select valid.*, new_users.user_key
    from valid inner join new_users on valid.user_id = new_users.user_id
),
stored as (
    insert into interactions (user_key, item_key, event_type, value, occurred_at, event_id)
    select
        user_key, item_key, event_type, value,
        least(coalesce(to_timestamp(occurred_at), now()), now()), event_id
    from keyed
    order by position
    on conflict (event_id) do nothing
    returning event_id
)
select valid.position, stored.event_id is not null
from valid left join stored on valid.event_id = stored.event_id
"""

_RECORD_IMPRESSIONS: str = """
insert into impressions
    (rec_id, position, user_id, item_key, release, scenario, source, score, served_at)
select
    shown.rec_id, shown.position, shown.user_id, shown.item_key, shown.release, shown.scenario,
    shown.source, shown.score, coalesce(to_timestamp(shown.served_at), now())
from unnest(
    %s::uuid[], %s::smallint[], %s::text[], %s::integer[], %s::text[], %s::text[], %s::text[],
    %s::real[], %s::double precision[]
) as shown (
    rec_id, position, user_id, item_key, release, scenario, source, score, served_at
)
inner join items on shown.item_key = items.item_key
on conflict (rec_id, position) do nothing
returning position
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
    """One batch on its way: checked rows as columns, and the answers so far."""

    def __init__(self, rows: Sequence[EventRow]) -> None:
        now = time.time()
        self.results: list[EventResult | None] = []
        self._positions: list[int] = []
        self._ids: list[str] = []
        kept: list[EventRow] = []
        known: set[str] = set()
        for position, row in enumerate(rows):
            event_id = str(uuid_utils.uuid7()) if row.event_id is None else row.event_id
            problem = _event_problem(row, now)
            result = None
            if problem is not None:
                result = EventResult(event_id, "rejected", problem)
            elif event_id in known:
                result = EventResult(event_id, "duplicate")
            else:
                known.add(event_id)
                kept.append(row)
                self._ids.append(event_id)
                self._positions.append(position)
            self.results.append(result)
        self._items = [row.item_id for row in kept]
        self.parameters = (
            self._ids,
            [row.user_id for row in kept],
            self._items,
            [row.event_type for row in kept],
            [None if row.value is None else to_float32(row.value) for row in kept],
            [row.occurred_at for row in kept],
        )

    def __bool__(self) -> bool:
        return bool(self._ids)

    def finish(self, stored: Sequence[tuple[int, bool]]) -> list[EventResult]:
        """Add what the database answered: (1-based position, newly stored) of each valid row."""
        fresh = dict(stored)
        for at, position in enumerate(self._positions):
            event_id = self._ids[at]
            if at + 1 not in fresh:
                reason = f"unknown_item: no item has the id {self._items[at]!r}"
                self.results[position] = EventResult(event_id, "rejected", reason)
            else:
                status: Status = "accepted" if fresh[at + 1] else "duplicate"
                self.results[position] = EventResult(event_id, status)
        return [result for result in self.results if result is not None]


def record_events(
    connection: psycopg.Connection[Any], rows: Sequence[EventRow]
) -> list[EventResult]:
    """Store a batch of events; see :func:`record_events_async`, which the service uses."""
    batch = _EventBatch(rows)
    if not batch:
        return batch.finish([])
    with connection.transaction():
        return batch.finish(connection.execute(_RECORD_EVENTS, batch.parameters).fetchall())


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
        One for each row, in order. ``duplicate``: an event with this id is stored already and
        stays as it is. ``rejected``: the reason starts with a code, such as ``unknown_item``.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached. The batch may be sent again: events with an id are
        stored once.
    """
    batch = _EventBatch(rows)
    if not batch:
        return batch.finish([])
    return batch.finish(await run_async(pool, _RECORD_EVENTS, batch.parameters))


def _is_storable(row: Impression) -> bool:
    """Return whether PostgreSQL can hold the row: one that it refuses would take all along."""
    texts = (row.user_id, row.release, row.scenario, row.source)
    try:
        uuid_utils.UUID(row.rec_id)
    except ValueError:
        return False
    return (
        all(not text or id_problem(text, len(text)) is None for text in texts)
        and 0 <= row.position < 2**15
        and (row.score is None or is_float32(row.score))
        and (row.served_at is None or is_moment(row.served_at))
    )


async def record_impressions(pool: Pool, impressions: Sequence[Impression]) -> int:
    """Store what was shown, with one statement; an answer that is stored already is skipped.

    Returns
    -------
    int
        Rows that are new. An impression of an item that is not in the database, or with a value
        that PostgreSQL cannot hold, is left out.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached.
    """
    rows = [row for row in impressions if _is_storable(row)]
    columns = tuple([getattr(row, name) for row in rows] for name in Impression.__slots__)
    return len(await run_async(pool, _RECORD_IMPRESSIONS, columns)) if rows else 0
