"""Which items users come to right after an item: lists of the last refresh, or as of a moment."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
from numpy.typing import ArrayLike, NDArray

from features.binary import copy_columns, register
from features.states import FloatArray, KeyArray

MOST_FOLLOWERS = 50
"""Followers of an item that ``sql/14_covisits.sql`` keeps."""


def read_covisits(
    connection: psycopg.Connection[Any],
) -> tuple[KeyArray, KeyArray, KeyArray, FloatArray]:
    """Read the view ``item_covisits``.

    Returns
    -------
    item_keys, other_keys, places : (P,) int64
        Keys of the database, and the place of the other in the item's list from 0.
    pairs : (P,) float32
        How often users came to the other right after the item.
    """
    found = copy_columns(
        connection,
        "select item_key, other_key, rank - 1, pairs from item_covisits",
        (("item_key", ">i4"), ("other_key", ">i4"), ("place", ">i4"), ("pairs", ">i4")),
    )
    return (
        found["item_key"].astype(np.int64),
        found["other_key"].astype(np.int64),
        found["place"].astype(np.int64),
        found["pairs"].astype(np.float32),
    )


def covisits_as_of(
    connection: psycopg.Connection[Any], item_keys: ArrayLike, as_of: ArrayLike
) -> tuple[KeyArray, FloatArray]:
    """Return the followers of items from the 90 whole UTC days before the day of each moment.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`; pairs are those of the last refresh.
    item_keys : (M,) int
        Keys of the database.
    as_of : (M,) float
        Unix seconds.

    Returns
    -------
    others : (M, P) int64
        Keys of the followers, most frequent first, -1 where there are fewer than P.
    pairs : (M, P) float32
        How often users came to them, 0 where padded.
    """
    keys = np.asarray(item_keys).astype(np.int64)
    days = np.floor_divide(np.asarray(as_of, np.float64), 86_400.0).astype(np.int64)
    wanted, inverse = np.unique(np.stack([keys, days]), axis=1, return_inverse=True)
    others = np.full((wanted.shape[1], MOST_FOLLOWERS), -1, np.int64)
    pairs = np.zeros(others.shape, np.float32)
    columns: list[NDArray[Any]] = []
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        register(cursor)
        cursor.execute(
            """
            select
                coalesce(array_agg(request), '{}'), coalesce(array_agg(other_key), '{}'),
                coalesce(array_agg(rank), '{}'), coalesce(array_agg(pairs), '{}')
            from item_followers_as_of(%b, %b)
            """,
            (wanted[0].astype(np.int32), wanted[1].astype(np.int32)),
        )
        row = cursor.fetchone()
        assert row is not None
        columns = [column.astype(np.int64) for column in row]
    request, other, rank, count = columns
    others[request - 1, rank - 1] = other
    pairs[request - 1, rank - 1] = count
    return others[inverse.ravel()], pairs[inverse.ravel()]
