"""Whole columns at once: texts to numbers, times and ids.

What is not surely right here is left to :mod:`features.ingest.rows`, which knows why.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from features.ids import EVENT_TYPE_LENGTH, ID_LENGTH
from features.ingest.mapping import Mapping
from features.ingest.rows import FUTURE_S, EventRow, RejectedRow, RowError, event
from features.real import LARGEST_FLOAT32, SMALLEST_FLOAT32

_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"
_DAY = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_LOCAL = _DAY + r"([ T]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?)?$"
_ZONED = _DAY + r"[ T]([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$"
_LEAF = 64
_WHOLE_BELOW = 2.0**63
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000}


@dataclass(frozen=True, slots=True)
class Coded:
    """A column of texts: `texts[codes[i]]` is that of row i."""

    codes: NDArray[np.int32]
    texts: list[str]


@dataclass(frozen=True, slots=True)
class Events:
    """Good events in the order of their lines, as columns."""

    line: NDArray[np.int64]
    user: Coded
    item: Coded
    kind: Coded
    moment: NDArray[np.int64]  # microseconds since 1970
    value: NDArray[np.float32]
    has_value: NDArray[np.bool_]
    event_id: pa.StringArray | None  # None where no event has one; null where one has none
    rejects: list[RejectedRow]


def _parse(texts: pa.StringArray, kind: pa.DataType) -> tuple[Any, NDArray[np.bool_]]:
    """Return `texts` as `kind`, and which of them are good; where one is not, the others are."""
    try:
        return texts.cast(kind).to_numpy(zero_copy_only=False), np.ones(len(texts), np.bool_)
    except pa.ArrowInvalid:
        if len(texts) <= _LEAF:
            empty = np.zeros(len(texts), kind.to_pandas_dtype())
            return empty, np.zeros(len(texts), np.bool_)
    half = len(texts) // 2
    parts = [_parse(texts[:half], kind), _parse(texts[half:], kind)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _matching(
    texts: pa.StringArray, pattern: str, kind: pa.DataType
) -> tuple[Any, NDArray[np.bool_]]:
    mask = pc.match_substring_regex(texts, pattern)
    found, good = _parse(texts.filter(mask), kind)
    ok = np.asarray(mask, np.bool_)
    values = np.zeros(len(texts), found.dtype)
    values[ok] = found
    ok[ok] = good
    return values, ok


def numbers(texts: pa.StringArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers in `texts`, and which of them are numbers."""
    try:
        return texts.cast(pa.float64()).to_numpy(), np.ones(len(texts), np.bool_)
    except pa.ArrowInvalid:
        return _matching(texts, _NUMBER, pa.float64())


def _microseconds(column: pa.Array, unit: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return times as microseconds since 1970, and which are surely right."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        present = np.asarray(column.is_valid(), np.bool_)
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        micros = column.cast(pa.timestamp("us", zone), safe=False)
        return micros.cast(pa.int64()).fill_null(0).to_numpy(), present
    if pa.types.is_integer(column.type):
        present = np.asarray(column.is_valid(), np.bool_)
        raw = column.cast(pa.int64(), safe=False).fill_null(0).to_numpy()
        ok = present & (raw >= 0) & (raw <= 2**53 // (1_000_000 // _PER_SECOND[unit]))
        return np.where(ok, raw, 0) * (1_000_000 // _PER_SECOND[unit]), ok
    if pa.types.is_floating(column.type) or pa.types.is_decimal(column.type):
        seconds = column.cast(pa.float64()).fill_null(np.nan).to_numpy()
        ok = np.isfinite(seconds)
    else:
        seconds, ok = numbers(column)
        ok &= np.isfinite(seconds)
    far = 2**53 / 1e6
    seconds = np.where(ok, seconds, 0.0) / float(_PER_SECOND[unit])
    ok &= np.abs(seconds) <= far
    micros = np.rint(np.where(ok, seconds, 0.0) * 1e6).astype(np.int64)
    if not ok.all() and pa.types.is_string(column.type):
        for pattern, zone in ((_LOCAL, None), (_ZONED, "UTC")):
            rest = np.flatnonzero(~ok)
            found, good = _matching(column.take(pa.array(rest)), pattern, pa.timestamp("us", zone))
            micros[rest[good]] = found[good].astype("datetime64[us]").astype(np.int64)
            ok[rest[good]] = True
    return micros, ok


def moments(column: pa.Array, unit: str, now: float) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return times of events as microseconds since 1970, and which may be stored."""
    micros, ok = _microseconds(column, unit)
    return micros, ok & (micros >= 0) & (micros <= (now + FUTURE_S) * 1e6)


def _values(
    column: pa.Array,
) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
    """Return values, where there are some, and which rows are right."""
    if pa.types.is_string(column.type):
        empty = np.asarray(pc.equal(column, ""), np.bool_)
        if empty.any():
            column = pc.if_else(pa.array(empty), "0", column)
        wide, ok = numbers(column)
    else:
        empty = np.asarray(column.is_null(), np.bool_)
        wide = column.cast(pa.float64(), safe=False).fill_null(0).to_numpy()
        ok = np.ones(len(wide), np.bool_)
    size = np.abs(wide)
    ok &= size <= LARGEST_FLOAT32
    wide = np.where(ok & (size >= SMALLEST_FLOAT32), wide, 0.0)
    return wide.astype(np.float32), ~empty, ok


def as_texts(column: pa.Array) -> pa.StringArray:
    """Return a column of any type as texts; nothing is an empty text."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _float_texts(column)
    if pa.types.is_decimal(kind):
        texts = column.cast(pa.string())
        if kind.scale > 0:
            texts = pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
        return texts.fill_null("")
    if not pa.types.is_string(kind):
        column = column.cast(pa.string())
    return column.fill_null("") if column.null_count else column


def _float_texts(column: pa.Array) -> pa.StringArray:
    """Return numbers as texts: whole ones without a point, NaN as nothing."""
    numbers = column.cast(pa.float64())
    whole = pc.and_(
        pc.equal(pc.floor(numbers), numbers), pc.less(pc.abs(numbers), _WHOLE_BELOW)
    ).fill_null(False)
    short = pc.if_else(whole, numbers, 0.0).cast(pa.int64()).cast(pa.string())
    texts = pc.if_else(whole, short, numbers.cast(pa.string()))
    return pc.if_else(pc.is_nan(numbers).fill_null(True), "", texts)


def _coded(column: pa.StringArray) -> Coded:
    encoded = column.dictionary_encode()
    return Coded(encoded.indices.to_numpy(), encoded.dictionary.to_pylist())


def _are_ids(texts: pa.StringArray, longest: int) -> NDArray[np.bool_]:
    encoded = texts.dictionary_encode()
    names = encoded.dictionary
    length = pc.utf8_length(names)
    good = pc.and_(
        pc.and_(pc.greater(length, 0), pc.less_equal(length, longest)),
        pc.invert(pc.match_substring(names, "\0")),
    )
    found: NDArray[np.bool_] = np.asarray(good, np.bool_)[encoded.indices.to_numpy()]
    return found


def shown(value: object) -> str:
    """Return a value of a typed column as text."""
    if value is None:
        return ""
    return value.isoformat() if isinstance(value, date) else str(value)


def convert(
    line: NDArray[np.int64],
    columns: dict[str, pa.Array],
    mapping: Mapping,
    now: float,
    rows: list[EventRow],
    rejects: list[RejectedRow],
    file: str,
) -> Events:
    """Return the good events among `columns` (rows of `line`) and the `rows` read one by one.

    A row that is not surely right is tried by :func:`features.ingest.rows.event`; what that
    refuses joins `rejects`.
    """
    users, items = as_texts(columns[mapping.user_id]), as_texts(columns[mapping.item_id])
    ok = _are_ids(users, ID_LENGTH) & _are_ids(items, ID_LENGTH)
    moment, good = moments(columns[mapping.occurred_at], mapping.time_unit, now)
    ok &= good
    value, has_value = np.zeros(len(line), np.float32), np.zeros(len(line), np.bool_)
    if mapping.value:
        value, has_value, good = _values(columns[mapping.value])
        ok &= good & (has_value | (not mapping.value_required))
    kinds = pa.repeat(mapping.default_type, len(line))
    if mapping.event_type:
        kinds = as_texts(columns[mapping.event_type])
        kinds = pc.if_else(pc.equal(kinds, ""), mapping.default_type, kinds)
        ok &= _are_ids(kinds, EVENT_TYPE_LENGTH)
    ids = pa.repeat("", len(line))
    if mapping.event_id:
        ids = as_texts(columns[mapping.event_id])
        length = pc.utf8_length(ids)
        nul = pc.match_substring(ids, "\0")
        ok &= np.asarray(pc.and_(pc.less_equal(length, ID_LENGTH), pc.invert(nul)), np.bool_)
    rows = list(rows)
    # The same number is the same id whichever way its row is read.
    as_ids = {mapping.user_id: users, mapping.item_id: items}
    as_ids |= {mapping.event_id: ids} if mapping.event_id else {}
    for at in np.flatnonzero(~ok):
        fields = {name: shown(column[int(at)].as_py()) for name, column in columns.items()}
        fields |= {name: texts[int(at)].as_py() for name, texts in as_ids.items()}
        try:
            rows.append(event(mapping, int(line[at]), fields, now))
        except RowError as error:
            rejects.append(RejectedRow(file, int(line[at]), error.column, error.reason))
    texts = [users, items, kinds, ids]
    if not ok.all():
        mask = pa.array(ok)
        texts = [column.filter(mask) for column in texts]
        line, moment, value, has_value = line[ok], moment[ok], value[ok], has_value[ok]
    if rows:
        added = [[row.user_id, row.item_id, row.event_type, row.event_id or ""] for row in rows]
        line = np.concatenate([line, [row.line for row in rows]])
        order = np.argsort(line, kind="stable")
        texts = [
            pa.concat_arrays([column, pa.array(list(more), pa.string())]).take(pa.array(order))
            for column, more in zip(texts, zip(*added, strict=True), strict=True)
        ]
        line = line[order]
        moment = np.concatenate([moment, [row.moment for row in rows]])[order]
        value = np.concatenate([value, np.array([row.value or 0.0 for row in rows], np.float32)])[
            order
        ]
        has = [row.value is not None for row in rows]
        has_value = np.concatenate([has_value, has])[order]
    named = pc.not_equal(texts[3], "")
    event_id = pc.if_else(named, texts[3], None) if pc.any(named).as_py() else None
    user, item, kind = map(_coded, texts[:3])
    return Events(line, user, item, kind, moment, value, has_value, event_id, rejects)
