"""Columns of numbers and texts as parameters and results of a statement, without slow loops.

Format of an array on the wire: ``array_recv`` in PostgreSQL's ``arrayfuncs.c``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg.adapt import Dumper
from psycopg.pq import Format

from features.binary import register

_TEXT, _TEXT_ARRAY = 25, 1009


class Texts:
    """A list of texts, sent as one binary ``text[]``.

    Parameters
    ----------
    values : sequence of str
        Without NUL and lone surrogates.
    """

    def __init__(self, values: Sequence[str]) -> None:
        self._values = values

    def packed(self) -> bytes:
        """Return the array as PostgreSQL reads it."""
        count = len(self._values)
        if count == 0:
            return struct.pack(">iii", 0, 0, _TEXT)
        parts = [text.encode() for text in self._values]
        size = np.fromiter(map(len, parts), np.int64, count)
        starts = np.concatenate([[0], np.cumsum(size[:-1] + 4)])
        out = np.empty(int(size.sum()) + 4 * count, np.uint8)
        is_text = np.ones(len(out), np.bool_)
        places = starts[:, None] + np.arange(4)  # (n, 4)
        is_text[places] = False
        out[places] = size.astype(">i4").view(np.uint8).reshape(count, 4)
        out[is_text] = np.frombuffer(b"".join(parts), np.uint8)
        return struct.pack(">iiiii", 1, 0, _TEXT, count, 1) + out.tobytes()


class _TextsDumper(Dumper):
    format = Format.BINARY
    oid = _TEXT_ARRAY

    def dump(self, obj: Texts) -> bytes:
        return obj.packed()


def one_row(
    connection: psycopg.Connection[Any], statement: str, parameters: Sequence[Any]
) -> list[NDArray[np.int64]]:
    """Return the one row of arrays that `statement` gives; an array of nothing is empty.

    Parameters
    ----------
    connection : psycopg.Connection
        In a transaction.
    statement : str
        A select of ``array_agg`` of bigint.
    parameters : sequence
        NumPy arrays, :class:`Texts` and numbers.
    """
    with connection.cursor(binary=True) as cursor:
        register(cursor)
        cursor.adapters.register_dumper(Texts, _TextsDumper)
        row = cursor.execute(statement, parameters).fetchone()
    assert row is not None
    return [np.empty(0, np.int64) if column is None else column for column in row]
