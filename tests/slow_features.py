"""Features from raw events, slowly and obviously: the oracle of the SQL.

Everything is counted event by event in exact integer microseconds.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from features.spec import WINDOWS_DAYS

MICROS_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class Event:
    """One interaction; `moment` in microseconds since 1970."""

    interaction_id: int
    user_key: int
    item_key: int
    value: float | None
    moment: int


@dataclass(frozen=True)
class Answer:
    """One answer shown; `user_key` None for a user of whom no event is known."""

    user_key: int | None
    item_keys: tuple[int, ...]
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


def read_answers(connection):
    """Return all answers."""
    return [
        Answer(user_key, tuple(int(key) for key in item_keys), moment)
        for user_key, item_keys, moment in connection.execute(
            "select users.user_key, answers.item_keys,"
            " (extract(epoch from answers.served_at) * 1000000)::bigint"
            " from answers left join users on answers.user_id = users.user_id"
        )
    ]


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
    return sum(event.moment >= moment - days * MICROS_A_DAY for event in events)


def _windows(events, moment, group):
    return {
        f"{group}_events_{days}d": np.float32(_within(events, moment, days))
        for days in WINDOWS_DAYS
    }


def _trend(events, moment, days, larger):
    few, many = _within(events, moment, days), _within(events, moment, larger)
    return np.float32(math.log((few + 0.1 * days) / (many + 0.1 * larger) * larger / days))


def is_click(event, answers):
    """Tell whether an answer of the 24 hours before showed the item to the user."""
    return any(
        answer.user_key == event.user_key
        and event.item_key in answer.item_keys
        and event.moment - MICROS_A_DAY <= answer.moment <= event.moment
        for answer in answers
    )


def click_rate(events, item_key, moment, answers):
    """Return the click rate of an item as of `moment`, drawn towards that of all items."""
    midnight = moment - moment % MICROS_A_DAY
    shown_before = sum(len(answer.item_keys) for answer in answers if answer.moment < midnight)
    if shown_before == 0:
        return np.float32(np.nan)
    clicks = [event for event in events if is_click(event, answers)]
    prior = sum(event.moment < midnight for event in clicks) / shown_before
    shown = sum(item_key in answer.item_keys for answer in answers if answer.moment < moment)
    clicked = sum(event.item_key == item_key and event.moment < moment for event in clicks)
    return np.float32((clicked + 20 * prior) / (shown + 20))


def item_features(events, created, item_key, moment, answers=()):
    """Return the raw features of an item from what happened strictly before `moment`."""
    past = [event for event in events if event.item_key == item_key and event.moment < moment]
    mean, std = _mean_and_std(past)
    return {
        "item_events": np.float32(len(past)),
        **_windows(past, moment, "item"),
        **{
            f"item_trend_{days}d": _trend(past, moment, days, larger)
            for days, larger in pairwise(WINDOWS_DAYS)
        },
        "item_value_mean": mean,
        "item_value_std": std,
        "item_age_days": np.float32(np.nan) if created is None else _days(created, moment),
        "item_recency_days": (
            _days(max(event.moment for event in past), moment) if past else np.float32(np.nan)
        ),
        "item_click_rate": click_rate(events, item_key, moment, answers),
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
    days = sorted({event.moment // MICROS_A_DAY for event in past})
    gaps = [later - earlier for earlier, later in pairwise(days)]
    return {
        "user_events": np.float32(len(past)),
        **_windows(past, moment, "user"),
        "user_value_mean": mean,
        "user_value_std": std,
        "user_active_days": np.float32(len(days)),
        "user_session_gap_days": np.float32(sum(gaps) / len(gaps)) if gaps else missing,
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


def covisits(events, moment, most=50):
    """Return {item: [(other, pairs), …]} of the 90 whole UTC days before the day of `moment`."""
    today = moment // MICROS_A_DAY
    counts = {}
    for user_key in {event.user_key for event in events}:
        arrived = sorted(
            (event for event in events if event.user_key == user_key),
            key=lambda event: event.interaction_id,
        )
        for at, later in enumerate(arrived):
            for earlier in arrived[max(0, at - 2) : at]:
                day = max(later.moment, earlier.moment) // MICROS_A_DAY
                if (
                    abs(later.moment - earlier.moment) <= 3_600_000_000
                    and earlier.item_key != later.item_key
                    and today - 90 <= day < today
                ):
                    pair = earlier.item_key, later.item_key
                    counts[pair] = counts.get(pair, 0) + 1
    found = {}
    for (item, other), pairs in sorted(counts.items(), key=lambda row: (-row[1], row[0][1])):
        found.setdefault(item, []).append((other, pairs))
    return {item: others[:most] for item, others in found.items()}
