"""Values as they were before a moment: training examples, evaluation, replay.

Scalars come from the running sums of ``sql/21_as_of.sql`` and ``sql/22_user_as_of.sql``.
Histories and categories are slices and running sums over each user's events, read once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import numpy as np
import psycopg
from numpy.typing import ArrayLike, NDArray

from features.binary import copy_columns, register
from features.catalogue import read_events, snapshot
from features.dropped import dropped_events
from features.errors import InputError
from features.spec import Group, names
from features.states import FloatArray, UserState, cold_state

# Bounds the memory of one statement, which holds the requests and the events of their keys.
_REQUESTS_A_STATEMENT = 250_000
_FUNCTIONS = {
    "item": "item_features_as_of(keys::integer[], moments, seen, partials_before, until)",
    "user": "user_features_as_of(keys, moments, before_ids, seen)",
}


def _moments(times: ArrayLike) -> NDArray[np.int64]:
    """Return unix seconds as microseconds, the resolution of PostgreSQL."""
    seconds = np.asarray(times, np.float64)
    if seconds.ndim != 1 or not np.isfinite(seconds).all():
        raise InputError("as_of: expected one dimension of finite unix seconds")
    return np.rint(seconds * 1e6).astype(np.int64)


@contextmanager
def staged(
    connection: psycopg.Connection[Any],
    group: Group,
    keys: NDArray[np.int64],
    moments: NDArray[np.int64],
    before_ids: NDArray[np.int64] | None = None,
    seen: str | None = None,
    partials_before: date | None = None,
) -> Iterator[str]:
    """Put requests where COPY can read them, since it takes no parameters; yield its select.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`; one transaction holds the requests.
    group : {"item", "user"}
        Whose features.
    keys : (M,) int64
        Keys of the database.
    moments : (M,) int64
        Microseconds since 1970.
    before_ids : (M,) int64, optional
        For users: events at the very moment count when their id is lower.
    seen : str, optional
        A ``pg_snapshot``; only rows that it saw count.
    partials_before : date, optional
        Of items: impressions and clicks of UTC days before it come from partials.

    Yields
    ------
    str
        ``select request, …``: the number of the request from 1, then a real for each feature in
        the order of the spec, NaN where missing. Keys that are not in the database have no row.
    """
    ties = np.zeros(len(keys), np.int64) if before_ids is None else before_ids
    with connection.transaction():
        register(connection)
        connection.execute("set local work_mem = '256MB'")
        connection.execute("set local jit = off")
        connection.execute(
            "create temp table if not exists as_of_requests (keys bigint[] storage external,"
            " moments bigint[] storage external, before_ids bigint[] storage external,"
            " seen pg_snapshot, partials_before date, until timestamptz) on commit drop"
        )
        connection.execute("truncate as_of_requests")
        connection.execute(
            "insert into as_of_requests values (%b, %b, %b, %s::text::pg_snapshot, %s,"
            " timestamptz 'epoch' + %s * interval '1 microsecond')",
            (keys, moments, ties, seen, partials_before, int(moments.max(initial=0))),
        )
        features = ", ".join(f"coalesce({name}, 'nan')" for name in names(group))
        yield (
            f"select request, {features} from as_of_requests cross join lateral"  # noqa: S608 - names of the spec, no input
            f" {_FUNCTIONS[group]}"
        )


def _features(
    connection: psycopg.Connection[Any],
    group: Group,
    columns: list[NDArray[np.int64]],
    seen: str | None,
    partials_before: date | None = None,
) -> FloatArray:
    """Read features of parallel arrays, a block of keys at a time; NaN where there is no row."""
    total = len(columns[0])
    features = np.full((total, len(names(group))), np.nan, np.float32)
    dtypes = [("request", ">i8"), *((name, ">f4") for name in names(group))]
    # By key, so that the events of each are read once.
    order = np.argsort(columns[0], kind="stable")
    for start in range(0, total, _REQUESTS_A_STATEMENT):
        block = order[start : start + _REQUESTS_A_STATEMENT]
        keys, moments, *ties = (column[block] for column in columns)
        before_ids = ties[0] if ties else None
        with staged(connection, group, keys, moments, before_ids, seen, partials_before) as select:
            rows = copy_columns(connection, select, dtypes)
        at = block[rows["request"] - 1]
        for position, name in enumerate(names(group)):
            features[at, position] = rows[name]
    return features


def item_features_as_of(
    connection: psycopg.Connection[Any],
    item_keys: ArrayLike,
    as_of: ArrayLike,
    seen: str | None = None,
    partials_before: date | None = None,
) -> FloatArray:
    """Return raw item features from the events strictly before each moment.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`.
    item_keys : (M,) int
        Keys of the database.
    as_of : (M,) float
        Unix seconds.
    seen : str, optional
        A ``pg_snapshot``; only events and answers that it saw count.
    partials_before : date, optional
        Impressions and clicks of UTC days before it come from the partials of the last refresh,
        and all others from the answers since: of :func:`features.replay.partials_before`.

    Returns
    -------
    (M, Fi) float32
        In the order of the spec; a row of NaN for a key that is not in the database.
    """
    keys = np.asarray(item_keys).astype(np.int64)
    return _features(connection, "item", [keys, _moments(as_of)], seen, partials_before)


def _user_columns(
    user_keys: ArrayLike, as_of: ArrayLike, before_interaction_ids: ArrayLike | None
) -> list[NDArray[np.int64]]:
    keys = np.asarray(user_keys).astype(np.int64)
    moments = _moments(as_of)
    ties = (
        np.zeros(len(keys), np.int64)
        if before_interaction_ids is None
        else np.asarray(before_interaction_ids).astype(np.int64)
    )
    if not len(keys) == len(moments) == len(ties):
        raise InputError(
            f"user_keys, as_of and before_interaction_ids have {len(keys)}, {len(moments)} and"
            f" {len(ties)} entries, expected equally many"
        )
    return [keys, moments, ties]


def user_features_as_of(
    connection: psycopg.Connection[Any],
    user_keys: ArrayLike,
    as_of: ArrayLike,
    before_interaction_ids: ArrayLike | None = None,
    seen: str | None = None,
) -> FloatArray:
    """Return raw user features from the events strictly before each moment.

    Parameters
    ----------
    connection, user_keys, as_of, before_interaction_ids
        As for :func:`states_as_of`.
    seen : str, optional
        A ``pg_snapshot``; only events that it saw count.

    Returns
    -------
    (E, Fu) float32
        In the order of the spec; a row of NaN for a key that is not in the database.
    """
    columns = _user_columns(user_keys, as_of, before_interaction_ids)
    return _features(connection, "user", columns, seen)


def _before(ids: NDArray[np.int64], moments: NDArray[np.int64], moment: int, tie: int) -> int:
    """Return how many of a user's events lie before (`moment`, interaction id `tie`)."""
    first, last = np.searchsorted(moments, [moment, moment + 1])
    return int(first + np.searchsorted(ids[first:last], tie))


class _CategorySums:
    """Running sums by category over one user's events."""

    def __init__(
        self, item_keys: NDArray[np.int64], values: FloatArray, of_item: dict[int, list[str]]
    ) -> None:
        lists = [of_item.get(int(key), []) for key in item_keys]
        self.names = sorted({name for found in lists for name in found})
        column = {name: position for position, name in enumerate(self.names)}
        hits = np.zeros((len(item_keys) + 1, len(self.names)))
        for row, found in enumerate(lists, start=1):
            for name in found:
                hits[row, column[name]] += 1
        weights = np.concatenate([[0.0], np.nan_to_num(values.astype(np.float64))])
        self._events = hits.cumsum(axis=0)
        self._sums = (hits * weights[:, None]).cumsum(axis=0)

    def before(self, position: int) -> tuple[list[str], FloatArray, FloatArray]:
        """Return names, events and value sums of the first `position` events."""
        present = np.flatnonzero(self._events[position])
        return (
            [self.names[column] for column in present],
            self._events[position, present].astype(np.float32),
            self._sums[position, present].astype(np.float32),
        )


def states_as_of(
    connection: psycopg.Connection[Any],
    user_keys: ArrayLike,
    as_of: ArrayLike,
    history_limit: int = 200,
    before_interaction_ids: ArrayLike | None = None,
) -> list[UserState]:
    """Return the states of users from their events strictly before each moment.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`.
    user_keys : (E,) int
        Keys of the database.
    as_of : (E,) float
        Unix seconds.
    history_limit : int
        Latest events in a state.
    before_interaction_ids : (E,) int, optional
        Break ties: events of the user at the very moment count when their id is lower.

    Returns
    -------
    list of UserState
        One for each example; histories are views on arrays they share, so write to none.
        `known` is false, and the id empty, for a key that is not in the database.
    """
    keys, moments, ties = columns = _user_columns(user_keys, as_of, before_interaction_ids)
    wanted = np.unique(keys)
    with snapshot(connection):
        features = _features(connection, "user", columns, None)
        events = read_events(connection, wanted.tolist())
        user_ids = dict(
            connection.execute(
                "select user_key, user_id from users where user_key = any(%s)", (wanted,)
            ).fetchall()
        )
        of_item = dict(connection.execute("select item_key, categories from items").fetchall())
        native = {
            name: events[name].astype(events[name].dtype.newbyteorder("="))
            for name in ("user_key", "item_key", "interaction_id", "value", "moment")
        }
        item_keys = native["item_key"].astype(np.int64)
        dropped = dropped_events(connection, wanted, item_keys, native["user_key"])
    times = native["moment"] / 1e6
    starts = np.searchsorted(native["user_key"], wanted)
    ends = np.searchsorted(native["user_key"], wanted, side="right")
    states: list[UserState | None] = [None] * len(keys)
    order = np.argsort(keys, kind="stable")
    bounds = np.searchsorted(keys[order], wanted), np.searchsorted(keys[order], wanted, "right")
    for user, start, end, low, high in zip(wanted.tolist(), starts, ends, *bounds, strict=True):
        mine = slice(start, end)
        is_first = np.zeros(end - start, np.bool_)
        is_first[np.unique(item_keys[mine], return_index=True)[1]] = True
        sums = _CategorySums(item_keys[mine], native["value"][mine], of_item)
        for example in order[low:high].tolist():
            if user not in user_ids:
                states[example] = cold_state("", float(moments[example] / 1e6))
                continue
            count = _before(
                native["interaction_id"][mine],
                native["moment"][mine],
                int(moments[example]),
                int(ties[example]),
            )
            past = slice(max(start, start + count - history_limit), start + count)
            categories = sums.before(count)
            seen = np.sort(item_keys[mine][:count][is_first[:count]])
            if user in dropped:
                categories = dropped[user].add_categories(int(moments[example]), categories)
                seen = dropped[user].add_seen(int(moments[example]), seen)
            category_names, category_events, category_sums = categories
            states[example] = UserState(
                user_id=user_ids[user],
                known=True,
                item_keys=item_keys[past],
                values=native["value"][past],
                times=times[past],
                seen_keys=seen,
                features=features[example],
                category_names=category_names,
                category_events=category_events,
                category_value_sums=category_sums,
                as_of=float(moments[example] / 1e6),
            )
    return [state for state in states if state is not None]
