"""What stays of a user's events whose raw rows were dropped: categories by day, items seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from features.states import FloatArray, KeyArray

_MICROS_A_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1)


@dataclass(slots=True)
class DroppedEvents:
    """Partials of one user for days before `micros`.

    Attributes
    ----------
    micros : int
        Microseconds since 1970 of the first day whose raw events are there.
    days : list of (int, str, int, float)
        End of a day in microseconds, category, events and sum of their values.
    seen : (m,) int64
        Items that none of the raw events has. An item that is among both is seen from its first
        raw event on: the sums do not tell when an item was first seen.
    """

    micros: int = 0
    days: list[tuple[int, str, int, float]] = field(default_factory=list)
    seen: KeyArray = field(default_factory=lambda: np.empty(0, np.int64))

    def add_categories(
        self, moment: int, found: tuple[list[str], FloatArray, FloatArray]
    ) -> tuple[list[str], FloatArray, FloatArray]:
        """Add the days that ended by `moment` to names, events and value sums."""
        sums = {
            name: (float(events), float(value_sum))
            for name, events, value_sum in zip(*found, strict=True)
        }
        for end, name, events, value_sum in self.days:
            if end <= moment:
                before = sums.get(name, (0.0, 0.0))
                sums[name] = before[0] + events, before[1] + value_sum
        order = sorted(sums)
        columns = np.array([sums[name] for name in order], np.float32).reshape(len(order), 2)
        return order, columns[:, 0].copy(), columns[:, 1].copy()

    def add_seen(self, moment: int, seen: KeyArray) -> KeyArray:
        """Add the items of dropped events to those seen, from the first raw day on."""
        return np.union1d(seen, self.seen) if moment >= self.micros else seen


def dropped_events(
    connection: psycopg.Connection[Any], user_keys: NDArray[np.int64], raw_keys: KeyArray,
    raw_users: KeyArray,
) -> dict[int, DroppedEvents]:  # fmt: skip
    """Read what stays of dropped events; nothing where none was dropped.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`.
    user_keys : (U,) int64
        Whose.
    raw_keys, raw_users : (n,) int64
        Item and user of each raw event of these users, sorted by user.
    """
    row = connection.execute("select raw_since from refresh_point").fetchone()
    if row is None or row[0] is None:
        return {}
    raw_since = row[0]
    micros = (raw_since - _EPOCH).days * _MICROS_A_DAY
    found = {int(key): DroppedEvents(micros) for key in user_keys}
    for user, day, name, events, value_sum in connection.execute(
        "select user_key, event_day, category, events, value_sum from user_category_daily"
        " where user_key = any(%s) and event_day < %s",
        (user_keys, raw_since),
    ):
        end = ((day - _EPOCH).days + 1) * _MICROS_A_DAY
        found[user].days.append((end, name, events, value_sum))
    for user, packed in connection.execute(
        "select user_key, seen_items from user_totals where user_key = any(%s)", (user_keys,)
    ):
        low, high = np.searchsorted(raw_users, [user, user + 1])
        seen = np.frombuffer(packed, ">i4").astype(np.int64)
        found[user].seen = np.setdiff1d(seen, raw_keys[low:high])
    return found
