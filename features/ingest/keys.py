"""Text ids to keys: known ones from memory, the others with one statement for each block."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from features.errors import InputError
from features.events import MOST_EVENT_TYPES
from features.ingest.arrays import Texts, one_row

KNOWN_USERS = 600_000
KNOWN_ITEMS = 300_000
"""Ids kept in memory at most, at about 200 bytes each; then they are learnt anew."""

# In the order of the ids, as the events API does: two writers that meet the same new users do
# not wait for each other in a circle. xmax is 0 in a row that this statement made.
_USERS = """
with incoming as (
    select * from unnest(%s::text[], %s::bigint[]) with ordinality
        as incoming (user_id, moment, position)
),
made as (
    insert into users (user_id, created_at)
    select user_id, to_timestamp(moment / 1e6) from incoming
    where not exists (select from users where users.user_id = incoming.user_id)
    order by user_id
    on conflict (user_id) do update set user_id = excluded.user_id
    returning user_id, user_key, xmax = 0 as is_new
),
keyed as (
    select incoming.position, users.user_key, false as is_new
    from incoming inner join users on incoming.user_id = users.user_id
    union all
    select incoming.position, made.user_key, made.is_new
    from incoming inner join made on incoming.user_id = made.user_id
)
select array_agg(position - 1), array_agg(user_key), array_agg(is_new::integer::bigint) from keyed
"""

# An erasure leaves a row here and waits for the lock of loads.
_ERASED = """
select count(*), coalesce(max((extract(epoch from erased_at) * 1000000)::bigint), 0) from erasures
"""

_ITEMS = """
select
    array_agg(position - 1), array_agg(items.item_key::bigint),
    array_agg(coalesce((extract(epoch from items.created_at) * 1000000)::bigint, %s::bigint))
from unnest(%s::text[]) with ordinality as incoming (item_id, position)
inner join items on incoming.item_id = items.item_id
"""

_MAKE_ITEMS = """
with made as (
    insert into items (item_id, created_at)
    select item_id, to_timestamp(moment / 1e6)
    from unnest(%s::text[], %s::bigint[]) with ordinality as incoming (item_id, moment, position)
    order by position
    on conflict (item_id) do nothing
    returning item_key::bigint
)
select array_agg(item_key) from made
"""

_LOWER = """
with lowered as (
    update items
    set created_at = to_timestamp(incoming.moment / 1e6)
    from unnest(%s::bigint[], %s::bigint[]) as incoming (item_key, moment)
    where
        items.item_key = incoming.item_key
        and (items.created_at is null or items.created_at > to_timestamp(incoming.moment / 1e6))
    returning items.item_key::bigint
)
select array_agg(item_key) from lowered
"""

NEVER = np.iinfo(np.int64).max


class Users:
    """Keys of users; `learnt` of a block are kept once it is committed."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._learnt: dict[str, int] = {}
        self._erased: tuple[Any, ...] | None = None

    def keys(
        self, connection: psycopg.Connection[Any], ids: list[str], moments: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], int]:
        """Return the keys of `ids`, which of them are new users, and how many those are.

        Parameters
        ----------
        connection : psycopg.Connection
            In a transaction that holds the lock of loads: no user is erased meanwhile.
        ids : list of str
            Each once.
        moments : (n,) int64
            First event of each, in microseconds; a new user was created then.
        """
        erased = connection.execute(_ERASED).fetchone()
        if erased != self._erased:
            self._erased, self._known = erased, {}
        known = self._known
        keys = np.array([known.get(name, 0) for name in ids], np.int64)
        self._learnt = {}
        unknown = np.flatnonzero(keys == 0)
        is_new = np.zeros(len(ids), np.bool_)
        if len(unknown):
            names = [ids[at] for at in unknown]
            at, found, made = one_row(connection, _USERS, [Texts(names), moments[unknown]])
            keys[unknown[at]] = found
            is_new[unknown[at]] = made != 0
            self._learnt = dict(zip(names, keys[unknown].tolist(), strict=True))
        return keys, is_new, int(is_new.sum())

    def keep(self) -> None:
        """Remember what the last block learnt."""
        if len(self._known) + len(self._learnt) > KNOWN_USERS:
            self._known = {}
        self._known |= self._learnt
        self._learnt = {}


class Items:
    """Keys of items and when they were created.

    Parameters
    ----------
    make : bool
        Create items that are not known; else their events are refused.
    """

    def __init__(self, make: bool) -> None:
        self._make = make
        self._known: dict[str, tuple[int, int]] = {}
        self._learnt: dict[str, tuple[int, int]] = {}

    def keys(
        self, connection: psycopg.Connection[Any], ids: list[str], moments: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], int]:
        """Return the keys of `ids`, 0 where there is none, and how many items are new.

        An item that was created after its first event here is dated back to it.
        """
        self._learnt = {}
        nothing = (0, NEVER)
        known = np.array([self._known.get(name, nothing) for name in ids], np.int64)
        known = known.reshape(len(ids), 2)
        keys, created = known[:, 0], known[:, 1]
        unknown = np.flatnonzero(keys == 0)
        made = 0
        if len(unknown):
            names = [ids[at] for at in unknown]
            at, found, since = one_row(connection, _ITEMS, [int(NEVER), Texts(names)])
            missing = np.ones(len(unknown), np.bool_)
            missing[at] = False
            if self._make and missing.any():
                rest = unknown[missing]
                new = Texts([ids[at] for at in rest])
                made = len(one_row(connection, _MAKE_ITEMS, [new, moments[rest]])[0])
                at, found, since = one_row(connection, _ITEMS, [int(NEVER), Texts(names)])
            keys[unknown[at]], created[unknown[at]] = found, since
        late = np.flatnonzero((keys != 0) & (created > moments))
        if len(late):
            one_row(connection, _LOWER, [keys[late], moments[late]])
            created[late] = moments[late]
        changed = np.union1d(unknown[keys[unknown] != 0], late)
        pairs = zip(keys[changed].tolist(), created[changed].tolist(), strict=True)
        self._learnt = dict(zip([ids[at] for at in changed], pairs, strict=True))
        return keys, made

    def keep(self) -> None:
        """Remember what the last block learnt."""
        if len(self._known) + len(self._learnt) > KNOWN_ITEMS:
            self._known = {}
        self._known |= self._learnt
        self._learnt = {}


_TYPES = """
with made as (
    insert into event_types (event_type)
    select event_type from unnest(%s::text[]) with ordinality as incoming (event_type, position)
    where not exists (
        select from event_types where event_types.event_type = incoming.event_type
    )
    order by position
    on conflict (event_type) do nothing
)
select 1
"""


def refuse_types(count: int) -> None:
    """Refuse so many event types, if they are more than may be.

    Raises
    ------
    InputError
        They are: most likely another column is meant.
    """
    if count > MOST_EVENT_TYPES:
        raise InputError(
            f"there would be {count:,} event types, at most {MOST_EVENT_TYPES:,} may be: say which"
            " column has them with --map event_type=COLUMN"
        )


def type_keys(connection: psycopg.Connection[Any], names: list[str]) -> NDArray[np.int64]:
    """Return the keys of event types, making those that are new.

    Raises
    ------
    InputError
        There would be more than may be.
    """
    read = "select event_type, event_type_key from event_types"
    found = dict(connection.execute(read).fetchall())
    if not found.keys() >= set(names):
        refuse_types(len(found.keys() | set(names)))
        connection.execute(_TYPES, [names])
        found = dict(connection.execute(read).fetchall())
    return np.array([found[name] for name in names], np.int64)
