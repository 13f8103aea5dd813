"""Features that answers were ranked with, against the same computed again as of that time.

Users are computed from the rows that the read of the request saw, items from those that the
refresh saw: ``pg_visible_in_snapshot`` leaves out what was committed later, however early it
claims to have happened. What differs is a fault of the refresh, of the live read or of what was
kept in memory, or a row that was changed or deleted by hand since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from features.asof import item_features_as_of
from features.binary import register
from features.catalogue import snapshot
from features.encode import encode_cross
from features.replay import partials_before
from features.schema import NOT_APPLIED, not_applied
from features.served import unpacked
from features.spec import Group, names, spec_hash
from features.states import FloatArray

_GROUPS: tuple[Group, ...] = ("user", "item", "cross")
_BATCH = 500
# Sums of doubles in another order differ in their last digits, and so may a float4.
_RELATIVE, _ABSOLUTE = 1e-5, 1e-6


@dataclass(frozen=True, slots=True)
class Example:
    """One value that differs; `item_id` is None for a feature of the user."""

    rec_id: str
    user_id: str
    item_id: str | None
    served: float
    recomputed: float


@dataclass(slots=True)
class FeatureSkew:
    """What the comparison of one feature found.

    Attributes
    ----------
    feature : str
    group : {"user", "item", "cross"}
    compared, differing : int
        Values.
    largest : float
        Largest absolute difference; infinite where one of the two is missing.
    example : Example or None
        The value that differs most.
    """

    feature: str
    group: Group
    compared: int = 0
    differing: int = 0
    largest: float = 0.0
    example: Example | None = None


@dataclass(slots=True)
class SkewReport:
    """What a replay of served features found.

    Attributes
    ----------
    answers : int
        Sampled answers that were compared.
    other_spec : int
        Answers left out because another version of the feature spec made them.
    unknown : int
        Answers left out because their user is not in the database any more.
    without_snapshot : int
        Answers whose item features are of no known refresh: these were not compared.
    before_erasure : int
        Answers whose item features are of a refresh before the last erasure of a user, whose
        events they may count: these were not compared.
    features : list of FeatureSkew
        In the order of the spec.
    """

    answers: int = 0
    other_spec: int = 0
    unknown: int = 0
    without_snapshot: int = 0
    before_erasure: int = 0
    features: list[FeatureSkew] = field(
        default_factory=lambda: [
            FeatureSkew(name, group) for group in _GROUPS for name in names(group)
        ]
    )

    @property
    def differing(self) -> int:
        """Number of values that differ."""
        return sum(row.differing for row in self.features)


@dataclass(slots=True)
class _Row:
    """One sampled answer and what was computed again for it."""

    rec_id: str
    user_id: str
    user_key: int
    user_micros: int
    user_snapshot: str
    item_as_of: float
    item_snapshot: str | None
    item_keys: NDArray[np.int64]
    served: dict[Group, FloatArray]
    again: dict[Group, FloatArray] = field(default_factory=dict)


_ROWS = """
select
    served.rec_id::text, served.user_id, users.user_key, micros(served.user_as_of),
    served.user_snapshot::text, unix_seconds(served.item_as_of), served.item_snapshot::text,
    served.item_keys, served.user_features, served.item_features, served.cross_features,
    served.spec_hash
from served_features as served
left join users on served.user_id = users.user_id
where served.served_at >= coalesce(%s, '-infinity'::timestamptz)
order by served.served_at desc, served.rec_id
limit %s
"""

_USERS = """
select wanted.place, {features}
from unnest(%b::bigint[], %b::bigint[], %s::text[]) with ordinality
    as wanted (user_key, moment, seen, place)
cross join lateral user_features_as_of(
    array[wanted.user_key], array[wanted.moment], array[0::bigint], wanted.seen::pg_snapshot
)
"""

_CATEGORIES = """
select wanted.place, found.category, sum(found.events)::real, sum(found.value_sum)::real
from unnest(%b::bigint[], %b::bigint[], %s::text[]) with ordinality
    as wanted (user_key, moment, seen, place)
cross join refresh_point
cross join lateral (
    select category.name, 1, coalesce(interactions.value, 0)::double precision
    from interactions
    inner join items on interactions.item_key = items.item_key
    cross join lateral unnest(items.categories) as category (name)
    where
        interactions.user_key = wanted.user_key
        and micros(interactions.occurred_at) < wanted.moment
        and pg_visible_in_snapshot(interactions.transaction_id, wanted.seen::pg_snapshot)
        and (
            refresh_point.raw_since is null
            or interactions.occurred_at >= refresh_point.raw_since::timestamp at time zone 'utc'
            or interactions.interaction_id > refresh_point.watermark
        )
    union all
    select daily.category, daily.events, daily.value_sum
    from user_category_daily as daily
    where daily.user_key = wanted.user_key and daily.event_day < refresh_point.raw_since
) as found (category, events, value_sum)
group by wanted.place, found.category
"""


_ERASED_AT = "select coalesce(max(unix_seconds(erased_at)), 0) from erasures"


def skew(
    connection: psycopg.Connection[Any], since: datetime | None = None, limit: int = 10_000
) -> SkewReport:
    """Compute the features of sampled answers again and compare them, before any encoding.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`.
    since : datetime, optional
        Only answers from this moment on.
    limit : int
        Most answers, the latest first.

    Raises
    ------
    SchemaError
        The schema was not applied.
    """
    report = SkewReport()
    try:
        with snapshot(connection):
            rows = list(_read(connection, since, limit, report))
            for start in range(0, len(rows), _BATCH):
                _users_again(connection, rows[start : start + _BATCH])
            items = _items_again(connection, rows, report)
            for start in range(0, len(rows), _BATCH):
                _cross_again(connection, rows[start : start + _BATCH], items)
    except NOT_APPLIED as error:
        raise not_applied(error) from error
    for row in rows:
        _compare(row, items, report)
    report.answers = len(rows)
    return report


def _read(
    connection: psycopg.Connection[Any], since: datetime | None, limit: int, report: SkewReport
) -> Iterator[_Row]:
    ours = spec_hash()
    with connection.cursor(binary=True) as cursor:
        register(cursor)
        found = cursor.execute(_ROWS, (since, limit)).fetchall()
    for (
        rec_id, user_id, user_key, micros, seen, item_as_of, item_seen,
        item_keys, user, items, cross, spec,
    ) in found:  # fmt: skip
        if spec != ours:
            report.other_spec += 1
        elif user_key is None:
            report.unknown += 1
        else:
            served: dict[Group, FloatArray] = {
                "user": unpacked(user, len(names("user"))),
                "item": unpacked(items, len(names("item"))),
                "cross": unpacked(cross, len(names("cross"))),
            }
            yield _Row(
                rec_id, user_id, user_key, micros, seen, item_as_of, item_seen,
                item_keys.astype(np.int64), served,
            )  # fmt: skip


def _users_again(connection: psycopg.Connection[Any], rows: list[_Row]) -> None:
    features = ", ".join(f"coalesce({name}, 'nan')" for name in names("user"))
    query = _USERS.format(features=features)
    for row in rows:
        row.again["user"] = np.full((1, len(names("user"))), np.nan, np.float32)
    for place, *values in _run(connection, query, rows):
        rows[place - 1].again["user"][0] = values


def _run(
    connection: psycopg.Connection[Any], query: str, rows: list[_Row]
) -> list[tuple[Any, ...]]:
    keys = np.array([row.user_key for row in rows], np.int64)
    moments = np.array([row.user_micros for row in rows], np.int64)
    seen = [row.user_snapshot for row in rows]
    with connection.cursor(binary=True) as cursor:
        register(cursor)
        return cursor.execute(query, (keys, moments, seen), prepare=False).fetchall()


def _items_again(
    connection: psycopg.Connection[Any], rows: list[_Row], report: SkewReport
) -> dict[int, tuple[str, list[str]]]:
    """Compute item features once for each refresh; return ids and categories by key."""
    refreshes: dict[tuple[float, str], list[_Row]] = {}
    (erased_at,) = connection.execute(_ERASED_AT).fetchone() or (0.0,)
    for row in rows:
        if row.item_snapshot is None:
            report.without_snapshot += 1
        elif row.item_as_of < erased_at:
            report.before_erasure += 1
        else:
            refreshes.setdefault((row.item_as_of, row.item_snapshot), []).append(row)
    wanted = np.unique(np.concatenate([np.empty(0, np.int64), *(row.item_keys for row in rows)]))
    days = partials_before(connection, [as_of for as_of, _ in refreshes]) if refreshes else []
    for ((as_of, seen), some), day in zip(refreshes.items(), days, strict=True):
        keys = np.unique(np.concatenate([row.item_keys for row in some]))
        found = item_features_as_of(connection, keys, np.full(len(keys), as_of), seen, day)
        for row in some:
            row.again["item"] = found[np.searchsorted(keys, row.item_keys)]
    items = connection.execute(
        "select item_key, item_id, categories from items where item_key = any(%s)",
        (wanted.astype(np.int32),),
    ).fetchall()
    known = {int(key): (str(item_id), list(held)) for key, item_id, held in items}
    for row in rows:
        # An item that was deleted since has nothing to compare.
        kept = np.array([key in known for key in row.item_keys.tolist()], np.bool_)
        row.item_keys = row.item_keys[kept]
        for group in ("item", "cross"):
            row.served[group] = row.served[group][kept]
        if "item" in row.again:
            row.again["item"] = row.again["item"][kept]
    return known


def _cross_again(
    connection: psycopg.Connection[Any], rows: list[_Row], known: dict[int, tuple[str, list[str]]]
) -> None:
    """Compute cross features from the user's events and the categories of the items."""
    sums: list[dict[str, tuple[float, float]]] = [{} for _ in rows]
    for place, name, events, value_sum in _run(connection, _CATEGORIES, rows):
        sums[place - 1][name] = (events, value_sum)
    for row, own in zip(rows, sums, strict=True):
        held = [known[key][1] for key in row.item_keys.tolist()]
        order = sorted({*own, *(name for some in held for name in some)})
        columns = {name: column for column, name in enumerate(order)}
        flags = np.zeros((len(held), len(order)), np.uint8)
        for place, some in enumerate(held):
            flags[place, [columns[name] for name in some]] = 1
        user = np.array([own.get(name, (0.0, 0.0)) for name in order], np.float32).reshape(-1, 2)
        every = np.arange(len(held))[None]
        row.again["cross"] = encode_cross(user[None, :, 0], user[None, :, 1], flags, every)[0]


def _compare(row: _Row, items: dict[int, tuple[str, list[str]]], report: SkewReport) -> None:
    for feature in report.features:
        again = row.again.get(feature.group)
        if again is None:
            continue
        at = names(feature.group).index(feature.feature)
        served = row.served[feature.group][:, at].astype(np.float64)
        recomputed = again[:, at].astype(np.float64)
        difference = np.abs(served - recomputed)
        difference[np.isnan(served) & np.isnan(recomputed)] = 0.0
        difference[np.isnan(difference)] = np.inf
        same = difference <= _ABSOLUTE + _RELATIVE * np.nan_to_num(np.abs(recomputed))
        feature.compared += len(served)
        feature.differing += int((~same).sum())
        worst = int(difference.argmax()) if len(difference) else 0
        if len(difference) and difference[worst] > feature.largest:
            feature.largest = float(difference[worst])
        if not same.all() and (
            feature.example is None or difference[worst] > _distance(feature.example)
        ):
            item_id = None if feature.group == "user" else items[int(row.item_keys[worst])][0]
            feature.example = Example(
                row.rec_id, row.user_id, item_id, float(served[worst]), float(recomputed[worst])
            )


def _distance(example: Example) -> float:
    distance = abs(example.served - example.recomputed)
    return np.inf if np.isnan(distance) else distance
