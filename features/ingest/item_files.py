"""Read a file of items row by row; what is wrong with a row is said, not raised."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow.parquet as pq

from features.errors import InputError
from features.ingest.columns import shown
from features.ingest.lines import header, read_lines, split
from features.ingest.presets import ItemFile
from features.ingest.rows import ItemRow, RejectedRow, RowError
from features.ingest.streams import Damaged, Stream, seekable

# A quoted title may span lines, but one forgotten quote must not swallow the file.
_LINES_A_ROW = 50
_BATCH_ROWS = 1 << 12

Reads = Callable[[int], None]
Reject = Callable[[RejectedRow], None]


def _lines(file: ItemFile, reads: Reads) -> Iterator[tuple[int, str]]:
    """Yield line number and text; bytes that do not decode stay as lone surrogates."""
    name = file.path.name
    with file.path.open("rb") as raw:
        stream = Stream(raw)
        for block in read_lines(stream, name):
            if block.error is not None:
                raise block.error
            for number, line in enumerate(block.data.split(b"\n")[:-1], start=block.first):
                yield number, line.decode(file.layout.encoding, "surrogateescape").rstrip("\r")
            reads(stream.done)


def _join_quoted(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Join the lines of a row whose quotes are still open."""
    waiting: list[tuple[int, str]] = []
    while True:
        found = waiting.pop(0) if waiting else next(lines, None)
        if found is None:
            return
        number, text = found
        if text.count('"') % 2:
            parts = [text]
            taken: list[tuple[int, str]] = []
            while len(taken) < _LINES_A_ROW:
                following = waiting.pop(0) if waiting else next(lines, None)
                if following is None:
                    break
                taken.append(following)
                parts.append(following[1])
                if following[1].count('"') % 2:
                    text = "\n".join(parts)
                    taken = []
                    break
            waiting = taken + waiting
        yield number, text


def _require(file: ItemFile, columns: list[str]) -> None:
    missing = [name for name in file.required if name not in columns]
    if missing:
        raise InputError(
            f"{file.path.name} line 1: column {missing[0]!r} is missing, found"
            f" {', '.join(columns)[:200]!r}; expected {', '.join(file.required)}"
        )


def _text_records(
    file: ItemFile, reject: Reject, reads: Reads
) -> Iterator[tuple[int, dict[str, str]]]:
    name, layout = file.path.name, file.layout
    lines = _lines(file, reads)
    if layout.separator in (",", ";", "\t") and not layout.names:
        lines = _join_quoted(lines)
    columns = list(layout.names)
    if not columns:
        first = next(lines, (1, ""))
        columns = header(name, first[1], layout, ", ".join(file.required))
        _require(file, columns)
    for number, text in lines:
        if not text:
            continue
        try:
            # A published file without a header has no quotes around its fields.
            values = text.split(layout.separator) if layout.names else split(text, layout.separator)
        except csv.Error as error:
            reject(RejectedRow(name, number, "", f"broken quotes: {error}"))
            continue
        if len(values) != len(columns):
            reason = f"has {len(values)} fields, expected {len(columns)}"
            reject(RejectedRow(name, number, "", reason))
            continue
        yield number, dict(zip(columns, values, strict=True))


def _field(value: object) -> str:
    """Return a value of JSON or Parquet as it would stand in a CSV."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "|".join(map(_field, value))
    return msgspec.json.encode(value).decode() if isinstance(value, dict) else shown(value)


def _json_records(
    file: ItemFile, reject: Reject, reads: Reads
) -> Iterator[tuple[int, dict[str, str]]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    for number, text in _lines(file, reads):
        if not text:
            continue
        try:
            row = decoder.decode(text.encode("utf-8", "surrogateescape"))
            missing = [name for name in file.required if name not in row]
        except msgspec.MsgspecError as error:
            reject(RejectedRow(file.path.name, number, "", f"is no JSON object: {error}"))
            continue
        if missing:
            reject(RejectedRow(file.path.name, number, missing[0], "is missing"))
            continue
        yield number, {name: _field(value) for name, value in row.items()}


def _table_records(file: ItemFile, reads: Reads) -> Iterator[tuple[int, dict[str, str]]]:
    size = file.path.stat().st_size
    with file.path.open("rb") as raw, seekable(raw, file.path) as (path, _):
        try:
            table = pq.ParquetFile(path)
        except (OSError, ValueError) as error:
            raise InputError(f"{file.path.name}: is no whole Parquet file ({error})") from error
        with table:
            _require(file, table.schema_arrow.names)
            number = 0
            for batch in table.iter_batches(_BATCH_ROWS):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: _field(value) for name, value in row.items()}
                reads(size * number // max(1, table.metadata.num_rows))


def read_items(file: ItemFile, reject: Reject, reads: Reads) -> Iterator[ItemRow]:
    """Yield the items of `file`; rows that are wrong go to `reject`.

    Raises
    ------
    InputError
        The file is empty, damaged or lacks a required column.
    """
    if file.format == "parquet":
        records = _table_records(file, reads)
    elif file.format == "jsonl":
        records = _json_records(file, reject, reads)
    else:
        records = _text_records(file, reject, reads)
    try:
        for line, row in records:
            try:
                yield file.parse(line, row)
            except RowError as error:
                reject(RejectedRow(file.path.name, line, error.column, error.reason))
    except Damaged as error:
        raise InputError(
            f"{file.path.name}: the compressed file is damaged ({error}); none of its items was"
            " loaded"
        ) from error
