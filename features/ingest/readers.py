"""A file of events in pieces: each is a block of rows that were read, checked and converted."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import IO, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from features.errors import InputError
from features.ingest.columns import Events, convert, shown
from features.ingest.lines import Layout, Lines, header, read_lines, split, split_lines
from features.ingest.mapping import REQUIRED, Mapping, resolve
from features.ingest.presets import EventFile
from features.ingest.rows import EventRow, RejectedRow, RowError, event
from features.ingest.streams import Damaged, Stream, seekable

BATCH_ROWS = 1 << 17
_SAMPLE = 1000
_UNREADABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OSError)


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a file.

    Attributes
    ----------
    rows_done : int
        Lines (or rows of Parquet) from the start of the file to the end of this block.
    bytes_done : int
        Bytes of the file on disk that were read by then.
    events : Events
        What is good, and what was rejected.
    damage : Damaged or None
        Why the file ends after this block.
    """

    rows_done: int
    bytes_done: int
    events: Events
    damage: Damaged | None = None


class Reader(Protocol):
    """Reads one file once."""

    mapping: Mapping
    types: dict[str, str]
    """Of the mapped columns, as far as the file says."""
    compression: str
    """Empty, ``.gz``, ``.xz`` or ``.zst``."""

    def pieces(self, skip: int, now: float) -> Iterator[Piece]:
        """Yield what comes after the first `skip` lines or rows."""

    def close(self) -> None:
        """Close the file."""


def open_events(file: EventFile) -> Reader:
    """Open `file` and settle which column is what.

    Raises
    ------
    InputError
        It is empty, damaged at its start, or lacks a column.
    """
    if file.path is None and sys.stdin is None:
        raise InputError("standard input is closed: nothing can be read from it")
    try:
        raw: IO[bytes] = sys.stdin.buffer if file.path is None else file.path.open("rb")
    except OSError as error:
        raise InputError(f"{file.name}: cannot be read ({error})") from error
    try:
        if file.format == "parquet":
            return TableReader(raw, file)
        return (ObjectReader if file.format == "jsonl" else TextReader)(raw, file)
    except Damaged as error:
        raise InputError(
            f"{file.name}: the compressed file is damaged at its start ({error}); nothing was"
            " loaded"
        ) from error
    except OSError as error:
        raise InputError(f"{file.name}: cannot be read ({error})") from error


class TextReader:
    """Reads lines with separators between their fields."""

    def __init__(self, raw: IO[bytes], file: EventFile) -> None:
        self._file = file.name
        self._stream = Stream(raw)
        self.compression = self._stream.compression
        self._lines = read_lines(self._stream, self._file)
        self._head = next(self._lines, None)
        if self._head is not None and self._head.error is not None:
            raise self._head.error
        self._settle(file)

    def _settle(self, file: EventFile) -> None:
        self._layout: Layout = file.layout
        first = b"" if self._head is None else self._head.data[: self._head.data.find(b"\n")]
        self._names = list(file.layout.names)
        if not self._names:
            text = first.decode(self._layout.encoding, "surrogateescape").rstrip("\r")
            self._names = header(self._file, text, self._layout, ", ".join(REQUIRED))
        found = resolve(self._file, self._names, file.wish, file.value_required)
        sample = self._sample()
        self.mapping = found.with_unit(sample[found.occurred_at])
        self.types = {name: _kind(sample[name]) for name in self.mapping.columns}

    def _sample(self) -> dict[str, list[str]]:
        """Return the columns of the first lines, without those that do not fit."""
        lines = [] if self._head is None else self._head.data.split(b"\n", _SAMPLE)[:_SAMPLE]
        rows = []
        for line in lines[self._header_lines :]:
            try:
                row = split(line.decode(errors="replace").rstrip("\r"), self._layout.separator)
            except csv.Error:
                continue
            if len(row) == len(self._names):
                rows.append(row)
        columns: list[list[str]] = [list(column) for column in zip(*rows, strict=True)]
        return dict(zip(self._names, columns or [[] for _ in self._names], strict=True))

    def _convert(self, lines: Lines, now: float) -> Events:
        mapping, names = self.mapping, self._names
        fields = split_lines(lines, self._layout, names, mapping.columns)
        rows: list[EventRow] = []
        rejects: list[RejectedRow] = []
        for line, text in fields.odd:
            try:
                values = split(text, self._layout.separator)
                if len(values) != len(names):
                    reason = f"has {len(values)} fields, expected {len(names)}"
                    raise RowError("", reason)
                rows.append(event(mapping, line, dict(zip(names, values, strict=True)), now))
            except csv.Error as error:
                rejects.append(RejectedRow(self._file, line, "", f"broken quotes: {error}"))
            except RowError as error:
                rejects.append(RejectedRow(self._file, line, error.column, error.reason))
        return convert(fields.line, fields.columns, mapping, now, rows, rejects, self._file)

    @property
    def _header_lines(self) -> int:
        return 0 if self._layout.names else 1

    def pieces(self, skip: int, now: float) -> Iterator[Piece]:
        """Yield what comes after the first `skip` lines."""
        skip = max(skip, self._header_lines)
        for lines in chain([self._head] if self._head else [], self._lines):
            left = _after(lines, skip)
            if left is not None:
                events = self._convert(left, now)
                done = left.first + left.count - 1
                yield Piece(done, self._stream.done, events, left.error)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _after(lines: Lines, skip: int) -> Lines | None:
    """Return what of `lines` comes after line `skip`."""
    if lines.error is not None or lines.first > skip:
        return lines
    drop = skip + 1 - lines.first
    if drop >= lines.count:
        return None
    ends = np.flatnonzero(np.frombuffer(lines.data, np.uint8) == ord("\n"))
    data = lines.data[int(ends[drop - 1]) + 1 :]
    return Lines(skip + 1, data, lines.count - drop)


class ObjectReader(TextReader):
    """Reads lines that are JSON objects of texts and numbers."""

    def _settle(self, file: EventFile) -> None:
        sample = [] if self._head is None else self._head.data.split(b"\n", _SAMPLE)[:_SAMPLE]
        objects: list[dict[str, Any]] = []
        for line in sample:
            try:
                objects.append(msgspec.json.decode(line, type=dict[str, Any]))
            except (msgspec.MsgspecError, RecursionError):
                continue
        names = list(dict.fromkeys(chain.from_iterable(objects)))
        if not names:
            raise InputError(
                f"{self._file} line 1: no JSON object in the first lines, expected one on each"
                f" line with the names {', '.join(REQUIRED)}"
            )
        self._layout = Layout("", names=tuple(names))
        found = resolve(self._file, names, file.wish, file.value_required)
        times = [str(row.get(found.occurred_at)) for row in objects]
        self.mapping = found.with_unit(times)
        self.types = {
            name: next(
                ("text" if isinstance(row[name], str) else "number" for row in objects
                 if row.get(name) is not None), "nothing",
            )
            for name in self.mapping.columns
        }  # fmt: skip
        columns = list(dict.fromkeys(self.mapping.columns))
        attributes = [f"c{position}" for position in range(len(columns))]
        self._decoder = msgspec.json.Decoder(
            msgspec.defstruct(
                "Row",
                [(attribute, str | int | float | None, None) for attribute in attributes],
                rename=dict(zip(attributes, columns, strict=True)),
                gc=False,
            )
        )
        self._attributes = dict(zip(columns, attributes, strict=True))

    def _convert(self, lines: Lines, now: float) -> Events:
        rejects: list[RejectedRow] = []
        found: list[Any] = []
        numbers: list[int] = []
        decode = self._decoder.decode
        for number, line in enumerate(lines.data.split(b"\n")[:-1], start=lines.first):
            if not line or line == b"\r":
                continue
            try:
                found.append(decode(line))
                numbers.append(number)
            except msgspec.MsgspecError as error:
                reason = f"is no JSON object of texts and numbers: {error}"
                rejects.append(RejectedRow(self._file, number, "", reason))
            except RecursionError:
                rejects.append(RejectedRow(self._file, number, "", "is nested too deep"))
        columns = {
            name: pa.array([_text(getattr(row, attribute)) for row in found], pa.string())
            for name, attribute in self._attributes.items()
        }
        return convert(
            np.array(numbers, np.int64), columns, self.mapping, now, [], rejects, self._file
        )

    @property
    def _header_lines(self) -> int:
        return 0


def _kind(texts: list[str]) -> str:
    """Return what values look like."""
    filled = [text for text in texts if text]
    if not filled:
        return "empty"
    if all(text.lstrip("-").isdecimal() for text in filled):
        return "integer"
    try:
        list(map(float, filled))
    except ValueError:
        return "text"
    return "number"


def _text(value: str | float | None) -> str:
    if type(value) is str:
        return value
    return "" if value is None else str(value)


class TableReader:
    """Reads Parquet, whose columns have types."""

    def __init__(self, raw: IO[bytes], file: EventFile) -> None:
        self._file = file.name
        self._raw = raw
        self._stack = ExitStack()
        try:
            at = None if file.is_stream else file.path
            path, self.compression = self._stack.enter_context(seekable(raw, at))
            self._bytes = 0 if file.path is None else file.path.stat().st_size
            self._table = self._stack.enter_context(pq.ParquetFile(path))
        except _UNREADABLE as error:
            raise InputError(f"{file.name}: is no whole Parquet file ({error})") from error
        names = self._table.schema_arrow.names
        found = resolve(self._file, names, file.wish, file.value_required)
        self.types = {}
        for name in found.columns:
            if names.count(name) > 1:
                raise InputError(f"{self._file}: two columns have the name {name!r}, expected one")
            kind = self._table.schema_arrow.field(name).type
            is_time = pa.types.is_timestamp(kind) or pa.types.is_date(kind)
            if name == found.value and is_time:
                raise InputError(
                    f"{self._file}: column {name!r} is of type {kind}, expected a number"
                )
            if not _is_usable(kind):
                raise InputError(
                    f"{self._file}: column {name!r} is of type {kind}, expected text, a number or"
                    " a time"
                )
            self.types[name] = str(kind)
        batches = self._table.iter_batches(_SAMPLE, columns=[found.occurred_at])
        sample = next(batches, None)
        times = [] if sample is None else sample.column(0).to_pylist()
        self.mapping = found.with_unit(map(shown, times))

    def pieces(self, skip: int, now: float) -> Iterator[Piece]:
        """Yield what comes after the first `skip` rows."""
        total = max(1, self._table.metadata.num_rows)
        first = 1
        batches = self._table.iter_batches(BATCH_ROWS, columns=self.mapping.columns)
        while True:
            try:
                batch = next(batches, None)
            except _UNREADABLE as error:
                rows = np.empty(0, np.int64)
                empty = {name: pa.array([], pa.string()) for name in self.mapping.columns}
                events = convert(rows, empty, self.mapping, now, [], [], self._file)
                yield Piece(first - 1, 0, events, Damaged(str(error)))
                return
            if batch is None:
                return
            last = first + batch.num_rows - 1
            if last > skip:
                batch = batch.slice(max(0, skip + 1 - first))
                line = np.arange(last - batch.num_rows + 1, last + 1, dtype=np.int64)
                columns = {name: _plain(batch.column(name)) for name in self.mapping.columns}
                events = convert(line, columns, self.mapping, now, [], [], self._file)
                yield Piece(last, self._bytes * last // total, events)
            first = last + 1

    def close(self) -> None:
        """Close the file."""
        self._stack.close()
        self._raw.close()


def _is_usable(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        *(pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        *(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
        *(pa.types.is_timestamp, pa.types.is_date, pa.types.is_null),
    )
    return any(test(kind) for test in tests)


def _plain(column: pa.Array) -> pa.Array:
    """Return `column` as text, integer, decimal, 64-bit float or time."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or pa.types.is_null(kind):
        column = column.cast(pa.string())
    elif pa.types.is_floating(kind):
        return column.cast(pa.float64())
    return column.fill_null("") if pa.types.is_string(column.type) else column
