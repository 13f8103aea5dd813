"""Events to PostgreSQL as a binary COPY, made by NumPy.

Format: https://www.postgresql.org/docs/18/sql-copy.html
"""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_COPY = """
copy interactions (user_key, occurred_at, item_key, event_type_key, value, event_id)
from stdin (format binary)
"""
_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_END = b"\xff\xff"
_COLUMNS = (
    *(("user_key", ">i8"), ("occurred_at", ">i8"), ("item_key", ">i4")),
    *(("event_type_key", ">i2"), ("value", ">f4")),
)
_ROW = np.dtype(
    [("columns", ">i2")]
    + [part for name, kind in _COLUMNS for part in ((name + "_size", ">i4"), (name, kind))]
    + [("event_id_size", ">i4")]
)
_VALUE = _ROW.fields["value"][1] if _ROW.fields else 0
_SLICE = 1 << 15
_NOTHING = -1
_MICROSECONDS_TO_2000 = 946_684_800_000_000


def copy_events(
    connection: psycopg.Connection[Any],
    user_key: NDArray[np.int64],
    item_key: NDArray[np.int64],
    type_key: NDArray[np.int64],
    moment: NDArray[np.int64],
    value: NDArray[np.float32],
    has_value: NDArray[np.bool_],
    event_id: pa.StringArray | None,
) -> None:
    """Store events in the order of the rows; `moment` in microseconds since 1970."""
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.write(_HEADER)
        for start in range(0, len(user_key), _SLICE):
            part = slice(start, start + _SLICE)
            rows = np.zeros(len(user_key[part]), _ROW)
            rows["columns"] = len(_COLUMNS) + 1
            for name, kind in _COLUMNS:
                rows[name + "_size"] = np.dtype(kind).itemsize
            rows["user_key"], rows["item_key"] = user_key[part], item_key[part]
            rows["event_type_key"], rows["value"] = type_key[part], value[part]
            rows["occurred_at"] = moment[part] - _MICROSECONDS_TO_2000
            rows["event_id_size"] = _NOTHING
            rows["value_size"][~has_value[part]] = _NOTHING
            ids = None if event_id is None else event_id[start : start + _SLICE]
            copy.write(_packed(rows, has_value[part], ids))
        copy.write(_END)


def _packed(
    rows: NDArray[Any], has_value: NDArray[np.bool_], event_id: pa.StringArray | None
) -> bytes:
    """Return rows as bytes, without values that are not there and with ids of any length."""
    if has_value.all() and event_id is None:
        return rows.tobytes()
    size = np.zeros(len(rows), np.int64)
    if event_id is not None:
        there = np.asarray(event_id.is_valid(), np.bool_)
        size = pc.binary_length(event_id).fill_null(0).to_numpy().astype(np.int64)
        rows["event_id_size"][there] = size[there]
    # Every row as wide as the widest; then what is not there is left out.
    width, longest = _ROW.itemsize, int(size.max(initial=0))
    wide = np.zeros((len(rows), width + longest), np.uint8)
    wide[:, :width] = rows.view(np.uint8).reshape(len(rows), width)
    kept = np.ones(wide.shape, np.bool_)
    kept[~has_value, _VALUE : _VALUE + 4] = False
    if event_id is not None:
        kept[:, width:] = np.arange(longest) < size[:, None]
        texts = "".join(event_id.drop_null().to_pylist()).encode()
        wide[:, width:][kept[:, width:]] = np.frombuffer(texts, np.uint8)
    found: bytes = wide[kept].tobytes()
    return found
