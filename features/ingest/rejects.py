"""Rows that were left out: counted, the first ones kept, all written to a file."""

from __future__ import annotations

import csv
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from features.errors import InputError
from features.ingest.rows import RejectedRow

KEPT = 100
_HEADER = ["file", "line", "column", "reason"]
_START = b"file,line,column,reason\r\n"


class Rejects:
    """Collects rejected rows.

    Parameters
    ----------
    path : Path or None
        CSV file for all of them, made when the first comes; None keeps no file. One of an
        earlier load is replaced; what is no file, such as a device, is written to.

    Raises
    ------
    InputError
        The file is there and is no such file, or cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.first: list[RejectedRow] = []
        self.count = 0
        self._stream: IO[str] | None = None
        self._resumed: dict[str, int] = {}
        self._is_file = path is None or _check(path)

    def resume(self, file: str, rows_done: int) -> None:
        """Keep what an earlier run wrote of `file` up to row `rows_done`."""
        self._resumed[file] = rows_done

    def add(self, rows: list[RejectedRow]) -> None:
        """Add rows and bring them to the disk."""
        if not rows:
            return
        self.count += len(rows)
        self.first += rows[: KEPT - len(self.first)]
        if self.path is None:
            return
        with _writing(self.path):
            if self._stream is None:
                self._stream = self._open(self.path)
            writer = csv.writer(self._stream)
            for row in rows:
                # Bytes that are no UTF-8 are shown as such.
                texts = [row.file, str(row.line), row.column, row.reason]
                writer.writerow([text.encode("utf-8", "replace").decode() for text in texts])
            self._stream.flush()

    def _open(self, path: Path) -> IO[str]:
        if not self._is_file:
            stream = path.open("w", newline="", encoding="utf-8")
            csv.writer(stream).writerow(_HEADER)
            return stream
        path.parent.mkdir(parents=True, exist_ok=True)
        rest = path.with_name(path.name + ".part")
        with rest.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(_HEADER)
            if self._resumed and path.exists():
                with path.open(newline="", encoding="utf-8") as before:
                    writer.writerows(
                        row
                        for row in csv.reader(before)
                        if len(row) == len(_HEADER)
                        and row[1].isdecimal()
                        and int(row[1]) <= self._resumed.get(row[0], 0)
                    )
        rest.replace(path)
        return path.open("a", newline="", encoding="utf-8")

    def close(self) -> None:
        """Close the file; an older one of the same name goes when nothing was rejected."""
        if self._stream is not None:
            with suppress(OSError):  # it was said where the row was added
                self._stream.close()
        elif self.path is not None and self._is_file and not self._resumed:
            self.path.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"rejects {str(path)!r}: cannot be written ({error.strerror}); --rejects names"
            " another file"
        ) from error


def _check(path: Path) -> bool:
    """Return whether `path` is a file or may become one; nothing of the user's is written over."""
    with _writing(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.is_file():
            with path.open("rb") as stream:
                start = stream.read(len(_START))
            if start not in (b"", _START):
                raise InputError(
                    f"rejects {str(path)!r}: is there already and holds no rejected rows, and"
                    " would be lost; --rejects names another file"
                )
        above = next(folder for folder in path.absolute().parents if folder.exists())
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return path.is_file() or not path.exists()
