"""The feature store: all that a batch of requests reads of its users, in one round trip.

The reads of jobs (catalogue, interactions, values as of a moment) are here by name too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from features.asof import item_features_as_of, states_as_of
from features.catalogue import read_catalogue, read_interactions
from features.ids import id_problem
from features.retry import run_async
from features.spec import names
from features.states import Catalogue, Interactions, KeyArray, UserState, cold_state

__all__ = [
    "Catalogue",
    "FeatureStore",
    "Interactions",
    "UserState",
    "cold_state",
    "item_features_as_of",
    "read_catalogue",
    "read_interactions",
    "states_as_of",
]


def _query() -> str:
    features = ", ".join(f"coalesce({name}, 'nan')" for name in names("user"))
    return f"""
        select
            user_id, as_of, item_keys, item_values, item_times, seen_keys, recent_keys,
            array[{features}]::real[], category_names, category_events, category_value_sums
        from user_states(%s::text[], %s::integer, now())
    """  # noqa: S608 - names of the spec, no input


Keys32 = NDArray[np.int32]


def _seen(refreshed: Keys32 | None, recent: Keys32 | None) -> KeyArray:
    """Return all seen items, ascending; `refreshed` already is."""
    if recent is None:
        return np.empty(0, np.int64) if refreshed is None else refreshed.astype(np.int64)
    both = recent if refreshed is None else np.concatenate([refreshed, recent])
    return np.unique(both).astype(np.int64)


def _state(row: Sequence[Any]) -> UserState:
    """Make a state of one row of the query; the history comes latest first."""
    user_id, as_of, keys, values, times, seen, recent, features, categories, events, sums = row
    return UserState(
        user_id=user_id,
        known=True,
        item_keys=np.empty(0, np.int64) if keys is None else keys[::-1].astype(np.int64),
        values=np.empty(0, np.float32) if values is None else values[::-1],
        times=np.empty(0, np.float64) if times is None else times[::-1],
        seen_keys=_seen(seen, recent),
        features=features,
        category_names=categories or [],
        category_events=np.empty(0, np.float32) if events is None else events,
        category_value_sums=np.empty(0, np.float32) if sums is None else sums,
        as_of=as_of,
    )


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
