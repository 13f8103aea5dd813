"""One block of events into the database, in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from numpy.typing import NDArray
from psycopg import errors

from features.ingest import ledger
from features.ingest.columns import Coded, Events
from features.ingest.duplicates import Duplicates
from features.ingest.keys import Items, Users, type_keys
from features.ingest.rejects import Rejects
from features.ingest.rows import RejectedRow
from features.ingest.writer import copy_events

_ATTEMPTS = 4


@dataclass(slots=True)
class Counts:
    """New users, items and interactions, and events that were there before."""

    users: int = 0
    items: int = 0
    interactions: int = 0
    already_loaded: int = 0


def _used(
    column: Coded, moment: NDArray[np.int64], kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], list[str], NDArray[np.int64]]:
    """Return the codes that kept rows use, their texts, and the first moment of each."""
    first = np.full(len(column.texts), np.iinfo(np.int64).max)
    np.minimum.at(first, column.codes[kept], moment[kept])
    codes = np.flatnonzero(first != np.iinfo(np.int64).max)
    return codes, [column.texts[code] for code in codes], first[codes]


class BlockWriter:
    """Writes the blocks of a load.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle between blocks.
    rejects : Rejects
        Gets what is refused.
    item_file : str or None
        Name of the file that holds the items: events of others are refused. None makes items.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], rejects: Rejects, item_file: str | None
    ) -> None:
        self.counts = Counts()
        self._connection = connection
        self._rejects = rejects
        self._item_file = item_file
        self._users = Users()
        self._items = Items(make=item_file is None)
        self._duplicates = Duplicates()
        with connection.transaction():
            connection.execute("set local search_path = shortlist, pg_temp")
            self._duplicates.begin(connection)

    def write(self, entry: ledger.Entry, events: Events, rows_done: int, shift: int) -> None:
        """Store a block and where the file stands now; `shift` in seconds moves its times."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                with self._connection.transaction():
                    self._connection.execute("set local search_path = shortlist, pg_temp")
                    self._connection.execute(ledger.LOCK)
                    added = self._write(entry, events, rows_done, shift * 1_000_000)
                break
            except (errors.DeadlockDetected, errors.SerializationFailure):
                if attempt == _ATTEMPTS:
                    raise
        self._users.keep()
        self._items.keep()
        entry.rows_done = rows_done
        entry.interactions += added.interactions
        self.counts.users += added.users
        self.counts.items += added.items
        self.counts.interactions += added.interactions
        self.counts.already_loaded += added.already_loaded

    def _write(self, entry: ledger.Entry, events: Events, rows_done: int, shift: int) -> Counts:
        connection, count = self._connection, len(events.line)
        rejects = list(events.rejects)
        added = Counts()
        if count:
            moment = events.moment + shift
            kept = np.ones(count, np.bool_)
            codes, texts, first = _used(events.item, moment, kept)
            item_of = np.zeros(len(events.item.texts), np.int64)
            item_of[codes], added.items = self._items.keys(connection, texts, first)
            item_key = item_of[events.item.codes]
            kept = item_key != 0
            for at in np.flatnonzero(~kept):
                name = events.item.texts[events.item.codes[at]]
                reason = f"item {name!r} is neither in {self._item_file} nor in the database"
                rejects.append(RejectedRow(entry.name, int(events.line[at]), "item", reason))
            if kept.any():
                columns = (item_key[kept], moment[kept])
                self._write_kept(entry, events, kept, columns, added, rejects)
        rejects.sort(key=lambda row: row.line)
        ledger.advance(connection, entry, rows_done, added.interactions, len(rejects))
        self._rejects.add(rejects)
        return added

    def _write_kept(
        self,
        entry: ledger.Entry,
        events: Events,
        kept: NDArray[np.bool_],
        columns: tuple[NDArray[np.int64], NDArray[np.int64]],
        added: Counts,
        rejects: list[RejectedRow],
    ) -> None:
        connection = self._connection
        item_key, moment = columns
        self._duplicates.begin(connection)
        codes, texts, first = _used(events.user, events.moment, kept)
        shift = moment[0] - events.moment[kept][0]
        user_of = np.zeros(len(events.user.texts), np.int64)
        new_of = np.zeros(len(events.user.texts), np.bool_)
        user_of[codes], new_of[codes], added.users = self._users.keys(
            connection, texts, first + shift
        )
        user = events.user.codes[kept]
        user_key = user_of[user]
        codes, texts, _ = _used(events.kind, events.moment, kept)
        kind_of = np.zeros(len(events.kind.texts), np.int64)
        kind_of[codes] = type_keys(connection, texts)
        type_key = kind_of[events.kind.codes[kept]]
        event_id = None if events.event_id is None else events.event_id.filter(pa.array(kept))
        repeated, stored = self._duplicates.find(
            connection, (user_key, item_key, type_key, moment), new_of[user], event_id
        )
        for line in events.line[kept][repeated]:
            rejects.append(
                RejectedRow(entry.name, int(line), "", "says the same as an earlier line")
            )
        fresh = ~repeated & ~stored
        # By user, for short ways in the indexes; the lines of a user keep their order.
        order = np.flatnonzero(fresh)
        order = order[np.argsort(user_key[order], kind="stable")]
        copy_events(
            connection,
            user_key[order],
            item_key[order],
            type_key[order],
            moment[order],
            events.value[kept][order],
            events.has_value[kept][order],
            None if event_id is None else event_id.take(pa.array(order)),
        )
        self._duplicates.keep(connection, fresh)
        added.interactions = len(order)
        added.already_loaded = int(stored.sum())
