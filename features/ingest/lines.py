"""Text files in blocks of whole lines, and lines as columns of fields."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.errors import InputError
from features.ids import id_problem
from features.ingest.streams import Damaged, Stream

FIRST_BYTES = 1 << 16
BLOCK_BYTES = 4 << 20
LONGEST_LINE = 64 << 20
_LONGEST_VALUE = 40
_UNIT = b"\x1f"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Layout:
    """How a kind of text file is written."""

    separator: str
    encoding: str = "utf-8"
    names: tuple[str, ...] = ()
    """Of its columns; empty: the first line names them."""


CSV = Layout(",")


@dataclass(frozen=True, slots=True)
class Lines:
    """Whole lines of a file."""

    first: int
    """1-based number of the first line."""
    data: bytes
    """Ends with a line end."""
    count: int
    error: Damaged | None = None
    """What kept the reader from going on after these lines."""


def read_lines(stream: Stream, file: str) -> Iterator[Lines]:
    """Yield the lines of `stream` in blocks; the first block may be small.

    Raises
    ------
    InputError
        A line is longer than can be held.
    """
    first, rest, size = 1, b"", FIRST_BYTES
    error: Damaged | None = None
    while True:
        try:
            piece = stream.read(size)
        except Damaged as found:
            error, piece, rest = found, b"", b""
        except OSError as found:
            raise InputError(f"{file}: cannot be read ({found})") from found
        data = rest + piece
        if first == 1:
            data = data.removeprefix(_BYTE_ORDER_MARK)
        if not piece and data:
            data += b"\n"
        cut = data.rfind(b"\n") + 1
        if not cut and len(data) > LONGEST_LINE:
            raise InputError(
                f"{file} line {first}: has more than {LONGEST_LINE >> 20} MB; is it a text file?"
            )
        rest = data[cut:]
        if cut:
            whole = data[:cut]
            yield Lines(first, whole, whole.count(b"\n"))
            first += whole.count(b"\n")
            size = BLOCK_BYTES
        if error is not None:
            yield Lines(first, b"", 0, error)
        if not piece:
            return


def split(text: str, separator: str) -> list[str]:
    """Return the fields of one line.

    Raises
    ------
    csv.Error
        A quote is not closed, or something follows a closed one.
    """
    if '"' not in text or len(separator) > 1:
        return text.split(separator)
    row = io.StringIO(text, newline="")
    return next(csv.reader(row, strict=True, delimiter=separator), [])


def header(file: str, text: str, layout: Layout, expected: str) -> list[str]:
    """Return the names of the columns in the first line `text`.

    Raises
    ------
    InputError
        It is empty, or its names cannot be told apart or stored; one may have no name.
    """
    if not text.strip():
        raise InputError(
            f"{file} line 1: the file is empty, expected a header with the columns {expected}"
        )
    try:
        columns = [name.strip() for name in split(text, layout.separator)]
    except csv.Error as error:
        raise InputError(f"{file} line 1: broken quotes in the header: {error}") from error
    if any("\r" in name for name in columns):
        raise InputError(
            f"{file} line 1: its lines end in CR alone, expected LF or CR LF: convert it, say with"
            " tr '\\r' '\\n'"
        )
    for position, name in enumerate(columns, start=1):
        problem = id_problem(name) if name else None
        if problem is None and name and name in columns[: position - 1]:
            problem = "stands on an earlier column too"
        if problem is not None:
            raise InputError(
                f"{file} line 1: column {position}, {name[:_LONGEST_VALUE]!r}, {problem}:"
                " give each column a name of its own in UTF-8"
            )
    return columns


@dataclass(frozen=True, slots=True)
class Fields:
    """Lines that have as many fields as there are columns, and the odd lines between them."""

    line: NDArray[np.int64]
    columns: dict[str, pa.StringArray]
    odd: list[tuple[int, str]]
    """Line number and text of what must be read by itself; bad bytes are lone surrogates."""


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _odd_lines(data: bytes, separator: bytes) -> tuple[bytes, dict[int, bytes]]:
    """Take the lines out that hold quotes, NUL, lone CR or bad bytes; empty lines stay for them."""
    kept = data.split(b"\n")[:-1]
    odd = {}
    for position, line in enumerate(kept):
        quoted = b'"' in line and len(separator) == 1
        if quoted or b"\0" in line or b"\r" in line or _UNIT in line or not _is_utf8(line):
            odd[position] = line
            kept[position] = b""
    return b"\n".join(kept) + b"\n", odd


def split_lines(lines: Lines, layout: Layout, names: list[str], wanted: list[str]) -> Fields:
    """Return the columns `wanted` of `lines`, whose columns have `names`; no line is lost.

    Regular lines are split by the places of separators and line ends, all at once. Empty lines
    are nothing.
    """
    data, separator = lines.data, layout.separator.encode()
    if layout.encoding != "utf-8" and not data.isascii():
        data = data.decode(layout.encoding).encode()
    if b"\r" in data and data.count(b"\r") == data.count(b"\r\n"):
        data = data.replace(b"\r\n", b"\n")
    quoted = b'"' in data and len(separator) == 1
    odd: dict[int, bytes] = {}
    if quoted or b"\0" in data or b"\r" in data or _UNIT in data or not _is_utf8(data):
        data, odd = _odd_lines(data, separator)
    if len(separator) > 1:
        data = data.replace(separator, _UNIT)
        separator = _UNIT
    view = np.frombuffer(data, np.uint8)
    is_end = view == ord("\n")
    is_border = is_end | (view == separator[0])
    borders = np.flatnonzero(is_border)  # (fields,)
    last = np.flatnonzero(is_end[borders])  # (lines,): the last field of each
    first = np.concatenate([[0], last[:-1] + 1])
    starts = np.concatenate([[0], borders[last[:-1]] + 1])
    filled = borders[last] > starts
    good = (last - first + 1 == len(names)) & filled
    texts = _strings(borders, view[~is_border])
    rows = first[good]
    columns = {name: texts.take(pa.array(rows + names.index(name))) for name in wanted}
    strange = {
        int(at): data[starts[at] : borders[last[at]]] for at in np.flatnonzero(filled & ~good)
    }
    if layout.separator == "::":
        strange = {at: text.replace(_UNIT, b"::") for at, text in strange.items()}
    number = lines.first + np.flatnonzero(good).astype(np.int64)
    texts_odd = sorted((odd | strange).items())
    decoded = [
        (lines.first + at, text.decode("utf-8", "surrogateescape").rstrip("\r"))
        for at, text in texts_odd
    ]
    return Fields(number, columns, [(line, text) for line, text in decoded if text])


def _strings(borders: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.StringArray:
    """Return the texts between borders; `data` has no borders any more."""
    offsets = np.zeros(len(borders) + 1, np.int32)
    np.subtract(borders, np.arange(len(borders)), out=offsets[1:], casting="unsafe")
    buffers: list[Any] = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.StringArray.from_buffers(len(borders), buffers[1], buffers[2])
