"""Features from raw events, slowly and obviously: the oracle of the SQL.

Everything is counted event by event in exact integer microseconds.
"""

import math
from dataclasses import dataclass

import numpy as np

MICROS_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class Event:
    """One interaction; `moment` in microseconds since 1970."""

    interaction_id: int
    user_key: int
    item_key: int
    value: float | None
    moment: int


def read_raw(connection):
    """Return all events and, by item key, creation time (microseconds or None) and categories."""
    events = [
        Event(*row)
        for row in connection.execute(
            "select interaction_id, user_key, item_key, value,"
            " (extract(epoch from occurred_at) * 1000000)::bigint from interactions"
        )
    ]
    items = {
        key: (None if created is None else int(created), categories)
        for key, created, categories in connection.execute(
            "select item_key, (extract(epoch from created_at) * 1000000)::bigint, categories"
            " from items"
        )
    }
    return events, items


def _days(earlier, later):
    return np.float32(max(later - earlier, 0) / MICROS_A_DAY)


def _mean_and_std(events):
    values = [event.value for event in events if event.value is not None]
    if not values:
        return np.float32(np.nan), np.float32(np.nan)
    mean = sum(values) / len(values)
    variance = sum(value * value for value in values) / len(values) - mean**2
    return np.float32(mean), np.float32(math.sqrt(max(variance, 0.0)))


def _within(events, moment, days):
    return np.float32(sum(event.moment >= moment - days * MICROS_A_DAY for event in events))


def item_features(events, created, item_key, moment):
    """Return the raw features of an item from the events strictly before `moment`."""
    past = [event for event in events if event.item_key == item_key and event.moment < moment]
    mean, std = _mean_and_std(past)
    return {
        "item_events": np.float32(len(past)),
        "item_events_7d": _within(past, moment, 7),
        "item_events_30d": _within(past, moment, 30),
        "item_events_365d": _within(past, moment, 365),
        "item_value_mean": mean,
        "item_value_std": std,
        "item_age_days": np.float32(np.nan) if created is None else _days(created, moment),
        "item_recency_days": (
            _days(max(event.moment for event in past), moment) if past else np.float32(np.nan)
        ),
    }


def user_past(events, user_key, moment, before_id=0):
    """Return a user's events before (moment, before_id), oldest first."""
    return sorted(
        (
            event
            for event in events
            if event.user_key == user_key
            and (event.moment, event.interaction_id) < (moment, before_id)
        ),
        key=lambda event: (event.moment, event.interaction_id),
    )


def user_features(events, user_key, moment, before_id=0):
    """Return the raw features of a user from the events before (moment, before_id)."""
    past = user_past(events, user_key, moment, before_id)
    mean, std = _mean_and_std(past)
    missing = np.float32(np.nan)
    return {
        "user_events": np.float32(len(past)),
        "user_events_30d": _within(past, moment, 30),
        "user_value_mean": mean,
        "user_value_std": std,
        "user_tenure_days": _days(past[0].moment, moment) if past else missing,
        "user_recency_days": _days(past[-1].moment, moment) if past else missing,
    }


def user_categories(past, items):
    """Return events and value sums by category, in the order of the names."""
    counts, sums = {}, {}
    for event in past:
        for name in items[event.item_key][1]:
            counts[name] = counts.get(name, 0) + 1
            sums[name] = sums.get(name, 0.0) + (event.value or 0.0)
    order = sorted(counts)
    return order, [counts[name] for name in order], [sums[name] for name in order]
