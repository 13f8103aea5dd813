"""Which events are there already: exact, at a fixed amount of memory.

A Bloom filter (B. H. Bloom, Space/time trade-offs in hash coding with allowable errors, 1970)
tells the rows that are surely new among those of this load; only the others are looked up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from numpy.typing import NDArray

from features.ingest.arrays import Texts, one_row

FILTER_BYTES = 32 << 20
_HASHES = 3

# limit keeps it one look into the index interactions_user_history for each row.
_STORED = """
select array_agg(position - 1)
from unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[]) with ordinality
    as incoming (user_key, item_key, event_type_key, moment, position)
cross join lateral (
    select from interactions
    where
        interactions.user_key = incoming.user_key
        and interactions.occurred_at = to_timestamp(incoming.moment / 1e6)
        and interactions.item_key = incoming.item_key
        and interactions.event_type_key = incoming.event_type_key
    limit 1
) as stored
"""

_NEW_IDS = """
with incoming as (
    select * from unnest(%s::text[]) with ordinality as incoming (event_id, position)
),
made as (
    insert into event_ids (event_id)
    select event_id from incoming
    order by event_id
    on conflict (event_id) do nothing
    returning event_id
)
select array_agg(incoming.position - 1)
from incoming left join made on incoming.event_id = made.event_id
where made.event_id is null
"""

_PLACE = """
select coalesce(pg_sequence_last_value(
    pg_get_serial_sequence('interactions', 'interaction_id')::regclass
), 0)
"""


def _mixed(*columns: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each row (the finalizer of MurmurHash3, column by column)."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found ^= column.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):
            found ^= found >> np.uint64(shift)
            found *= np.uint64(factor)
        found ^= found >> np.uint64(33)
    return found


class Filter:
    """Hashes that may have been added; one that was added is never called new.

    Parameters
    ----------
    size : int
        Bytes, a power of two.
    """

    def __init__(self, size: int = FILTER_BYTES) -> None:
        self._bits = np.zeros(size, np.uint8)

    def _places(self, hashes: NDArray[np.uint64]) -> list[tuple[NDArray[Any], NDArray[np.uint8]]]:
        step = (hashes >> np.uint64(32)) | np.uint64(1)
        found = []
        for number in range(_HASHES):
            place = (hashes + np.uint64(number) * step) & np.uint64(8 * len(self._bits) - 1)
            bit = np.left_shift(np.uint8(1), (place & np.uint64(7)).astype(np.uint8))
            found.append(((place >> np.uint64(3)).astype(np.int64), bit))
        return found

    def may_hold(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which of `hashes` may have been added."""
        found = np.ones(len(hashes), np.bool_)
        for place, bit in self._places(hashes):
            found &= (self._bits[place] & bit) != 0
        return found

    def add(self, hashes: NDArray[np.uint64]) -> None:
        """Add `hashes`."""
        for place, bit in self._places(hashes):
            np.bitwise_or.at(self._bits, place, bit)


class Duplicates:
    """What this load stored, and whether anybody else stores events meanwhile."""

    def __init__(self) -> None:
        self._filter = Filter()
        self._is_alone = True
        self._place: int | None = None
        self._hashes = np.empty(0, np.uint64)

    def begin(self, connection: psycopg.Connection[Any]) -> None:
        """Look whether all events of the table are from this load; once not, never again.

        Call it in a transaction of its own before the first block, and in that of each block.
        """
        if self._place is None:
            self._is_alone = _is_empty(connection)
            self._place = _place(connection)
        elif _place(connection) != self._place:
            self._is_alone = False

    def find(
        self,
        connection: psycopg.Connection[Any],
        columns: tuple[NDArray[np.int64], ...],
        is_new_user: NDArray[np.bool_],
        event_id: pa.StringArray | None,
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which rows say the same as an earlier one of the block, and which are stored.

        Parameters
        ----------
        connection : psycopg.Connection
            In the transaction of the block.
        columns : four (n,) int64
            User, item and type keys and microseconds since 1970, in the order of the lines.
        is_new_user : (n,) bool
            Rows of users that this block made: nothing of them can be stored.
        event_id : array of text or None
            Null where there is none. Those that are new are stored.
        """
        count = len(columns[0])
        repeated, stored = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        has_id = np.zeros(count, np.bool_)
        if event_id is not None:
            has_id = np.asarray(event_id.is_valid(), np.bool_)
            named = np.flatnonzero(has_id)
            names = event_id.drop_null().to_pylist()
            first = {name: at for at, name in zip(named[::-1], names[::-1], strict=True)}
            repeated[named] = True
            named = np.fromiter(first.values(), np.int64, len(first))
            repeated[named] = False
            (known,) = one_row(connection, _NEW_IDS, [Texts(list(first))])
            stored[named[known]] = True
        self._hashes = _mixed(*columns)
        _mark_repeated(columns, self._hashes, has_id, repeated, stored)
        suspects = ~has_id & ~repeated
        if self._is_alone:
            suspects &= self._filter.may_hold(self._hashes)
        else:
            suspects &= ~is_new_user
        at = np.flatnonzero(suspects)
        if len(at):
            at = at[np.lexsort((columns[3][at], columns[0][at]))]
            connection.execute("set local enable_seqscan = off")
            (found,) = one_row(connection, _STORED, [column[at] for column in columns])
            stored[at[found]] = True
            connection.execute("set local enable_seqscan = on")
        return repeated, stored

    def keep(self, connection: psycopg.Connection[Any], kept: NDArray[np.bool_]) -> None:
        """Remember the rows that the block stored; call it before the commit."""
        assert self._place is not None
        place = _place(connection)
        if place != self._place + int(kept.sum()):
            self._is_alone = False
        self._place = place
        if self._is_alone:
            self._filter.add(self._hashes[kept])


def _place(connection: psycopg.Connection[Any]) -> int:
    """Return the last number that any event was given."""
    row = connection.execute(_PLACE).fetchone()
    assert row is not None
    return int(row[0])


def _is_empty(connection: psycopg.Connection[Any]) -> bool:
    """Return whether there are no events, not even of writers that have not committed yet.

    A table that looks empty is locked until the end of the transaction: that waits for them.
    """
    look = "select not exists (select from interactions)"
    if connection.execute(look).fetchone() != (True,):
        return False
    connection.execute("lock table interactions in share mode")
    return connection.execute(look).fetchone() == (True,)


def _mark_repeated(
    columns: tuple[NDArray[np.int64], ...],
    hashes: NDArray[np.uint64],
    has_id: NDArray[np.bool_],
    repeated: NDArray[np.bool_],
    stored: NDArray[np.bool_],
) -> None:
    """Mark the rows without an id that equal an earlier row that stays."""
    order = np.argsort(hashes, kind="stable")
    same = hashes[order][1:] == hashes[order][:-1]
    alike = np.zeros(len(hashes), np.bool_)
    alike[order[1:][same]] = alike[order[:-1][same]] = True
    seen = set()
    for at in np.flatnonzero(alike & ~repeated & ~stored):
        row = tuple(int(column[at]) for column in columns)
        if not has_id[at]:
            repeated[at] = row in seen
        seen.add(row)
