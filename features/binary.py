"""Bytes of PostgreSQL to NumPy and back, without a Python object for each value.

Formats: https://www.postgresql.org/docs/18/sql-copy.html (binary) and ``array_send`` in
PostgreSQL's ``arrayfuncs.c`` for arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import sql
from psycopg.abc import AdaptContext, Buffer, DumperKey
from psycopg.adapt import Dumper, Loader, PyFormat
from psycopg.pq import Format

from features.errors import DatabaseError

# Array element type: name, array oid, element oid, dtype on the wire.
_ELEMENTS: dict[str, tuple[int, int, str]] = {
    "int4": (1007, 23, ">i4"),
    "int8": (1016, 20, ">i8"),
    "float4": (1021, 700, ">f4"),
    "float8": (1022, 701, ">f8"),
}
_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0"


def _loader(wire: str) -> type[Loader]:
    element = np.dtype([("size", ">i4"), ("value", wire)])
    native = np.dtype(wire).newbyteorder("=")

    class ArrayLoader(Loader):
        format = Format.BINARY

        def load(self, data: Buffer) -> NDArray[Any]:
            raw = bytes(data)
            dimensions, has_null = struct.unpack_from(">ii", raw)
            if dimensions == 0:
                return np.empty(0, native)
            if dimensions != 1 or has_null:
                raise DatabaseError("expected an array of one dimension without nulls")
            return np.frombuffer(raw, element, offset=20)["value"].astype(native)

    return ArrayLoader


class _ArrayDumper(Dumper):
    """Dump a one-dimensional int32, int64, float32 or float64 array."""

    format = Format.BINARY

    def __init__(self, cls: type, context: AdaptContext | None = None) -> None:
        super().__init__(cls, context)
        self._wire = ""
        self._element_oid = 0

    def get_key(self, obj: NDArray[Any], format: PyFormat) -> DumperKey:
        return (self.cls, (type(obj.dtype),))

    def upgrade(self, obj: NDArray[Any], format: PyFormat) -> _ArrayDumper:
        kind = {"i": "int", "f": "float"}.get(obj.dtype.kind, "") + str(obj.dtype.itemsize)
        if kind not in _ELEMENTS or obj.ndim != 1:
            raise TypeError(
                f"cannot send an array of dtype {obj.dtype} and shape {obj.shape} to PostgreSQL:"
                " expected one dimension of int32, int64, float32 or float64"
            )
        dumper = _ArrayDumper(self.cls)
        dumper.oid, dumper._element_oid, dumper._wire = _ELEMENTS[kind]
        return dumper

    def dump(self, obj: NDArray[Any]) -> bytes:
        wire = np.dtype(self._wire)
        body = np.empty(len(obj), [("size", ">i4"), ("value", wire)])
        body["size"] = wire.itemsize
        body["value"] = obj
        if len(obj) == 0:
            return struct.pack(">iii", 0, 0, self._element_oid)
        return struct.pack(">iiiii", 1, 0, self._element_oid, len(obj), 1) + body.tobytes()


def register(context: AdaptContext) -> None:
    """Make `context` (a connection or cursor) read and write number arrays as NumPy arrays."""
    for array_oid, _, wire in _ELEMENTS.values():
        context.adapters.register_loader(array_oid, _loader_of[wire])
    context.adapters.register_dumper(np.ndarray, _ArrayDumper)


_loader_of: dict[str, type[Loader]] = {wire: _loader(wire) for _, _, wire in _ELEMENTS.values()}


def copy_columns(
    connection: psycopg.Connection[Any], query: str, dtypes: Sequence[tuple[str, str]]
) -> NDArray[Any]:
    """Run `query` through ``COPY … TO STDOUT (FORMAT binary)`` into a structured array.

    Parameters
    ----------
    connection : psycopg.Connection
        Open connection.
    query : str
        A select of numbers, none of them null, without parameters.
    dtypes : sequence of (str, str)
        Name and big-endian dtype (``>i4``, ``>i8``, ``>f4``, ``>f8``) of each column.

    Returns
    -------
    (n,) structured array
        Fields in the order of `dtypes`, in wire byte order.

    Raises
    ------
    DatabaseError
        A row held a null or a column of another width.
    """
    fields: list[tuple[str, str]] = [("_count", ">i2")]
    for name, dtype in dtypes:
        fields += [(f"_{name}_size", ">i4"), (name, dtype)]
    row = np.dtype(fields)
    buffer = bytearray()
    statement = sql.SQL("copy ({}) to stdout (format binary)").format(sql.SQL(query))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in copy:
            buffer += block
    extension = struct.unpack_from(">i", buffer, len(_COPY_SIGNATURE) + 4)[0]
    start = len(_COPY_SIGNATURE) + 8 + extension
    count, rest = divmod(len(buffer) - start - 2, row.itemsize)
    table = np.frombuffer(buffer, row, count=count, offset=start)
    sizes_fit = all((table[f"_{name}_size"] == row[name].itemsize).all() for name, _ in dtypes)
    if rest or not sizes_fit:
        raise DatabaseError(f"the result of {query!r} is not of the declared widths {dtypes!r}")
    return table
