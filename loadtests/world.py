"""A synthetic shop as large as wanted: Zipf popularity, users of unequal zeal, sessions.

Events come in the order of time, as in production. The same seed gives the same events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

MICROS_A_DAY = 86_400_000_000
HISTORY_DAYS = 365
"""Length of a synthetic history."""
_MICROS_TO_2000 = 946_684_800_000_000
_SESSION_EVENTS = 4.0
_SECONDS_BETWEEN = 60.0

EVENT = np.dtype([("user_key", "<i8"), ("moment", "<i8"), ("item_key", "<i4"), ("value", "<f4")])
"""One event; `moment` in microseconds since 1970."""

COLUMNS = ("user_key", "occurred_at", "item_key", "value", "event_type_key")
_WIRE = np.dtype(
    [
        ("fields", ">i2"),
        ("user_size", ">i4"),
        ("user_key", ">i8"),
        ("time_size", ">i4"),
        ("time", ">i8"),
        ("item_size", ">i4"),
        ("item_key", ">i4"),
        ("value_size", ">i4"),
        ("value", ">f4"),
        ("type_size", ">i4"),
        ("type", ">i2"),
    ]
)
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"


@dataclass(frozen=True, slots=True)
class World:
    """How large the shop is.

    Attributes
    ----------
    users, items, categories : int
        Numbers of each; keys are 1 to the number.
    seed : int
        Of all that is drawn.
    """

    users: int = 500_000
    items: int = 200_000
    categories: int = 20
    seed: int = 7

    def events(self, count: int, start: int, end: int, part: int) -> NDArray[Any]:
        """Draw about `count` events between two moments.

        Sessions begin evenly over the time; their length is geometric with mean 4 and events
        follow each other after 60 s on average. Users are drawn with lognormal weights, items
        with weights 1/rank (Zipf), ranks shuffled over the keys.

        Parameters
        ----------
        count : int
            Events to draw; those of sessions that pass `end` fall away.
        start, end : int
            Microseconds since 1970.
        part : int
            Number of the slice: each draws from a generator of its own.

        Returns
        -------
        (n,) structured array
            Dtype `EVENT`, ascending by moment.
        """
        rng = np.random.default_rng([self.seed, part])
        lengths = rng.geometric(1 / _SESSION_EVENTS, size=int(count / _SESSION_EVENTS) + 1)
        starts = rng.integers(start, end, size=len(lengths))
        people = _drawn(rng, _zeal(self), len(lengths)) + 1
        first = np.repeat(np.cumsum(lengths) - lengths, lengths)
        gaps = (rng.exponential(_SECONDS_BETWEEN, size=lengths.sum()) * 1e6).astype(np.int64)
        elapsed = np.cumsum(gaps)
        events = np.empty(lengths.sum(), EVENT)
        events["moment"] = np.repeat(starts, lengths) + elapsed - elapsed[first]
        events["user_key"] = np.repeat(people, lengths)
        events["item_key"] = _keys(self)[_drawn(rng, _popularity(self), len(events))]
        events["value"] = rng.integers(1, 11, size=len(events)) / 2
        events = events[events["moment"] < end]
        return events[np.argsort(events["moment"], kind="stable")]


def _zeal(world: World) -> NDArray[np.float64]:
    rng = np.random.default_rng([world.seed, 1 << 20])
    return np.cumsum(rng.lognormal(0.0, 1.0, world.users))


def _popularity(world: World) -> NDArray[np.float64]:
    return np.cumsum(1.0 / np.arange(1, world.items + 1))


def _keys(world: World) -> NDArray[np.int32]:
    rng = np.random.default_rng([world.seed, 1 << 21])
    return (rng.permutation(world.items) + 1).astype(np.int32)


def _drawn(
    rng: np.random.Generator, cumulated: NDArray[np.float64], size: int
) -> NDArray[np.int64]:
    drawn: NDArray[np.int64] = np.searchsorted(
        cumulated, rng.random(size) * cumulated[-1], side="right"
    )
    return drawn


def fill_catalogue(connection: psycopg.Connection[Any], world: World) -> None:
    """Make the users, the items with one to three categories each, and the event type."""
    with connection.transaction():
        connection.execute("set local search_path = shortlist")
        connection.execute(
            "insert into users (user_id) select 'u' || n from generate_series(1, %s) as n",
            (world.users,),
        )
        connection.execute(
            """
            insert into items (item_id, title, categories, created_at)
            select
                'i' || n, 'Item ' || n,
                array(
                    select distinct 'category ' || (n * 7919 + k * k * 104729) %% %s
                    from generate_series(0, n %% 3) as k
                ),
                now() - interval '400 days'
            from generate_series(1, %s) as n
            """,
            (world.categories, world.items),
        )
        connection.execute("insert into event_types (event_type) values ('rating')")


def copy_events(connection: psycopg.Connection[Any], events: NDArray[Any]) -> None:
    """Append events by one binary COPY; users, items and the event type must be there."""
    rows = np.zeros(len(events), _WIRE)
    rows["fields"] = len(COLUMNS)
    rows["user_size"] = rows["time_size"] = 8
    rows["item_size"] = rows["value_size"] = 4
    rows["type_size"] = 2
    rows["user_key"] = events["user_key"]
    rows["time"] = events["moment"] - _MICROS_TO_2000
    rows["item_key"] = events["item_key"]
    rows["value"] = events["value"]
    rows["type"] = 1
    with connection.transaction(), connection.cursor() as cursor:
        statement = (
            "copy shortlist.interactions (user_key, occurred_at, item_key, value, event_type_key)"
            " from stdin (format binary)"
        )
        with cursor.copy(statement) as copy:
            copy.write(_HEADER)
            for block in np.array_split(rows, max(1, len(rows) // 50_000)):
                copy.write(block.tobytes())
            copy.write(_TRAILER)
