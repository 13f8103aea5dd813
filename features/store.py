"""The feature store: all that a batch of requests reads of its users, in one round trip.

The reads of jobs (catalogue, interactions, values as of a moment) are here by name too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from features.asof import item_features_as_of, states_as_of, user_features_as_of
from features.catalogue import (
    item_features,
    item_features_async,
    read_catalogue,
    read_interactions,
)
from features.ids import id_problem
from features.retry import run_async
from features.spec import names
from features.states import (
    Catalogue,
    FloatArray,
    Interactions,
    KeyArray,
    UserState,
    cold_state,
)

__all__ = [
    "Catalogue",
    "FeatureStore",
    "Interactions",
    "UserState",
    "cold_state",
    "item_features",
    "item_features_as_of",
    "item_features_async",
    "read_catalogue",
    "read_interactions",
    "states_as_of",
    "user_features_as_of",
]


# What sql/05 and sql/20 pack.
_EVENT = np.dtype([("item_key", ">i4"), ("value", ">f4"), ("moment", ">i8")])
_KEY = np.dtype(">i4")
_SUMS = np.dtype([("events", ">f4"), ("value_sum", ">f4")])
_MICROS_TO_2000 = 946_684_800_000_000


def _query() -> str:
    features = " || ".join(f"float4send(coalesce({name}, 'nan'))" for name in names("user"))
    return f"""
        select
            user_id, as_of, snapshot, history, seen_items, live_items, category_names,
            category_sums, live_category_sums, {features}
        from user_states(%s::text[], %s::integer, now())
    """  # noqa: S608 - names of the spec, no input


def _state(row: Sequence[Any]) -> UserState:
    """Make a state of one row of the query; what has no rows is null."""
    user_id, as_of, snapshot, packed, seen, live_items, *categories, numbers = row
    history = np.frombuffer(packed or b"", _EVENT)[::-1]
    names_found, events, value_sums = _categories(*categories)
    return UserState(
        user_id=user_id,
        known=True,
        item_keys=history["item_key"].astype(np.int64),
        values=history["value"].astype(np.float32),
        times=(history["moment"] + _MICROS_TO_2000) / 1e6,
        seen_keys=_distinct((seen or b"") + (live_items or b"")),
        features=np.frombuffer(numbers, ">f4").astype(np.float32),
        category_names=names_found,
        category_events=events,
        category_value_sums=value_sums,
        as_of=as_of,
        snapshot=snapshot,
    )


def _distinct(packed: bytes) -> KeyArray:
    """Return packed keys ascending, each once."""
    keys = np.frombuffer(packed, _KEY).astype(np.int64)
    keys.sort()
    repeated = keys[1:] == keys[:-1]
    return np.delete(keys, np.flatnonzero(repeated)) if repeated.any() else keys


def _categories(
    past_names: list[str] | None, packed_sums: bytes | None, live_sums: str | None
) -> tuple[list[str], FloatArray, FloatArray]:
    """Add the categories of live events to the refreshed sums; ascending by name."""
    sums = np.frombuffer(packed_sums or b"", _SUMS)
    events, value_sums = sums["events"].astype(np.float32), sums["value_sum"].astype(np.float32)
    if live_sums is None:
        return past_names or [], events, value_sums
    past = zip(events.tolist(), value_sums.tolist(), strict=True)
    merged = dict(zip(past_names or [], past, strict=True))
    for name, (count, value_sum) in json.loads(live_sums).items():
        before = merged.get(name, (0.0, 0.0))
        merged[name] = (before[0] + count, before[1] + value_sum)
    order = sorted(merged)
    columns = np.array([merged[name] for name in order], np.float32).reshape(len(order), 2)
    return order, columns[:, 0].copy(), columns[:, 1].copy()


class FeatureStore:
    """Live user states from PostgreSQL.

    Features are the sums of the last refresh and the events since, so they equal the value as
    of the moment of the read; nothing is cached.

    Parameters
    ----------
    pool : AsyncConnectionPool
        Open pool of :func:`features.database.open_pool`.
    history_limit : int
        Latest events in a state, in events.
    """

    def __init__(
        self, pool: AsyncConnectionPool[AsyncConnection[Any]], history_limit: int = 200
    ) -> None:
        self._pool = pool
        self._history_limit = history_limit
        self._text = _query()

    async def user_states(self, user_ids: Sequence[str]) -> list[UserState]:
        """Read the states of a batch of users with one statement.

        Parameters
        ----------
        user_ids : sequence of str
            External ids; any text, also twice, known or not.

        Returns
        -------
        list of UserState
            One for each id, in order; `cold_state` for an unknown one.

        Raises
        ------
        DatabaseUnavailable
            No connection, or the connection was lost three times.
        SchemaError
            The schema was not applied.
        """
        wanted = [user_id for user_id in dict.fromkeys(user_ids) if id_problem(user_id) is None]
        rows = (
            await run_async(self._pool, self._text, (wanted, self._history_limit)) if wanted else []
        )
        found = {row[0]: row for row in rows}
        now = time.time()
        return [
            _state(found[user_id]) if user_id in found else cold_state(user_id, now)
            for user_id in user_ids
        ]
