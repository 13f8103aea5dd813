"""Whole tables: the catalogue, the features of all items, all interactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psycopg
from psycopg import AsyncConnection, sql
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool

from features.binary import copy_columns, register
from features.retry import run_async
from features.spec import names
from features.states import Catalogue, Interactions, ItemFeatures

_ROWS_A_FETCH = 20_000

_EVENT_COLUMNS = (
    ("user_key", ">i8"),
    ("item_key", ">i4"),
    ("interaction_id", ">i8"),
    ("value", ">f4"),
    ("moment", ">i8"),
)
_EVENT_QUERY = (
    "select user_key, item_key, interaction_id, coalesce(value, 'nan'), micros(occurred_at)"
    " from interactions {where} order by user_key, occurred_at, interaction_id"
)


@contextmanager
def snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let all reads inside see one state of the database; join a transaction that is open."""
    idle = connection.info.transaction_status == TransactionStatus.IDLE
    with connection.transaction():
        if idle:
            connection.execute("set transaction isolation level repeatable read")
        yield


def _catalogue_query(which: str) -> str:
    """Items with their features; one that came after the refresh has no events, but an age."""
    columns = ", ".join(f"coalesce(item_features.{name}, 'nan')" for name in names("item"))
    return f"""
        select
            items.change_id, unix_seconds(refresh_point.as_of), items.item_key, items.item_id,
            convert_to((
                items.attributes
                || jsonb_build_object('title', items.title, 'categories', items.categories)
            )::text, 'utf8'),
            items.categories, coalesce(unix_seconds(items.created_at), 'nan'), items.available,
            array[{columns}]::real[], coalesce(refresh_point.snapshot::text, '')
        from items cross join refresh_point
        inner join item_features on items.item_key = item_features.item_key
        where {which}
        order by items.item_key
    """  # noqa: S608 - names of the spec, no input


_ALL_QUERY = _catalogue_query("items.change_id > %s")
# An array tells the planner that there are few, and features are computed for these alone.
CHANGED_QUERY = _catalogue_query(
    "item_features.item_key = any(array("
    "select changed.item_key from items as changed where changed.change_id > %s))"
)


def catalogue_of(rows: Iterable[tuple[Any, ...]], since: int) -> Catalogue:
    """Make a catalogue of the rows of `CHANGED_QUERY`."""
    watermark, as_of, refresh_saw = since, float("nan"), ""
    item_keys: list[int] = []
    item_ids: list[str] = []
    fields: list[bytes] = []
    categories: list[tuple[str, ...]] = []
    created_at: list[float] = []
    available: list[bool] = []
    features: list[Any] = []
    for (
        change, point, key, item_id, field, item_categories, created, is_available, raw, seen
    ) in rows:  # fmt: skip
        watermark = max(watermark, change)
        as_of, refresh_saw = point, seen
        item_keys.append(key)
        item_ids.append(item_id)
        fields.append(bytes(field))
        categories.append(tuple(item_categories))
        created_at.append(created)
        available.append(is_available)
        features.append(raw)
    return Catalogue(
        item_keys=np.array(item_keys, np.int64),
        item_ids=item_ids,
        fields=fields,
        categories=categories,
        created_at=np.array(created_at, np.float64),
        available=np.array(available, np.bool_),
        features=np.array(features, np.float32).reshape(len(item_keys), len(names("item"))),
        features_as_of=as_of,
        features_snapshot=refresh_saw,
        watermark=watermark,
    )


def read_catalogue(connection: psycopg.Connection[Any], since: int = 0) -> Catalogue:
    """Read all items, or those that changed after the watermark `since`.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`.
    since : int
        ``watermark`` of an earlier read; 0 reads everything.

    Returns
    -------
    Catalogue
        Retired items are in it too, with `available` false.
    """
    with connection.transaction(), connection.cursor("catalogue", binary=True) as cursor:
        register(cursor)
        cursor.itersize = _ROWS_A_FETCH
        cursor.execute(CHANGED_QUERY if since else _ALL_QUERY, (since,))
        return catalogue_of(cursor, since)


_PACKED = np.dtype(
    [("fields", ">i4"), ("key_oid", ">i4"), ("key_size", ">i4"), ("item_key", ">i4")]
    + [
        field
        for name in names("item")
        for field in ((f"{name}_oid", ">i4"), (f"{name}_size", ">i4"), (name, ">f4"))
    ]
)


def _item_features_query() -> str:
    """One row, with all items packed: no Python object and no array element for each number."""
    columns = ", ".join(f"coalesce({name}, 'nan')" for name in names("item"))
    return f"""
        select
            unix_seconds(as_of), coalesce(snapshot::text, ''),
            (select string_agg(record_send(row(item_key, {columns})), '') from item_features)
        from refresh_point
    """  # noqa: S608 - names of the spec, no input


_ITEM_FEATURES_QUERY = _item_features_query()
_ITEM_FEATURES_TIMEOUT_MS = 60_000


def _item_features_of(row: tuple[Any, ...]) -> ItemFeatures:
    as_of, seen, packed = row
    table = np.frombuffer(packed or b"", _PACKED)
    table = table[np.argsort(table["item_key"])]
    features = np.empty((len(table), len(names("item"))), np.float32)
    for position, name in enumerate(names("item")):
        features[:, position] = table[name]
    return ItemFeatures(table["item_key"].astype(np.int64), features, as_of, seen)


def item_features(connection: psycopg.Connection[Any]) -> ItemFeatures:
    """Read the raw features of all items as of the last refresh, in one snapshot."""
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        row = cursor.execute(_ITEM_FEATURES_QUERY).fetchone()
    assert row is not None
    return _item_features_of(row)


async def item_features_async(
    pool: AsyncConnectionPool[AsyncConnection[Any]],
) -> ItemFeatures:
    """Read the raw features of all items as of the last refresh, in one snapshot.

    Raises
    ------
    DatabaseUnavailable
        No connection, or the read took longer than a minute.
    SchemaError
        The schema was not applied.
    """
    (row,) = await run_async(pool, _ITEM_FEATURES_QUERY, (), _ITEM_FEATURES_TIMEOUT_MS)
    return _item_features_of(row)


def read_events(
    connection: psycopg.Connection[Any], user_keys: Sequence[int] | None = None
) -> np.ndarray[Any, Any]:
    """Read the events of all users or some, sorted by user key, time and interaction id.

    Returns
    -------
    (n,) structured array
        Fields ``user_key, item_key, interaction_id, value, moment`` (microseconds since 1970)
        in big-endian byte order.
    """
    where = ""
    if user_keys is not None:
        keys = ",".join(str(int(key)) for key in user_keys)
        where = f"where user_key = any('{{{keys}}}')"
    return copy_columns(connection, _EVENT_QUERY.format(where=where), _EVENT_COLUMNS)


def read_interactions(connection: psycopg.Connection[Any]) -> Interactions:
    """Read all interactions, sorted by user key, time and interaction id."""
    with snapshot(connection):
        events = read_events(connection)
        users = connection.execute(sql.SQL("select user_key, user_id from users")).fetchall()
    return Interactions(
        user_keys=events["user_key"].astype(np.int64),
        item_keys=events["item_key"].astype(np.int64),
        interaction_ids=events["interaction_id"].astype(np.int64),
        values=events["value"].astype(np.float32),
        times=events["moment"] / 1e6,
        user_ids={int(key): str(user_id) for key, user_id in users},
    )
