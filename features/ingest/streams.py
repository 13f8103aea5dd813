"""Bytes of a file, of standard input or of an archive: read once, from front to end."""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import pyarrow as pa

COMPRESSIONS = ("", ".gz", ".xz", ".zst")
_MAGIC = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\x00": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_PIECE = 1 << 20


class Damaged(Exception):
    """An archive ended early or does not unpack; what came before was given out."""


class Stream:
    """Decompressed bytes, and how far the file on disk was read.

    Parameters
    ----------
    raw : binary file
        What to read; closed with the stream.
    """

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        if not isinstance(raw, io.BufferedReader):
            raw = io.BufferedReader(cast(io.RawIOBase, raw))
        buffered = cast("io.BufferedReader[io.RawIOBase]", raw)
        self._counted = _Counted(buffered)
        start = buffered.peek(8)
        ending = next((name for magic, name in _MAGIC.items() if start.startswith(magic)), "")
        # read1 gives what was unpacked before it meets damage.
        self._read: Callable[[int], bytes]
        if ending == ".gz":
            self._read = gzip.GzipFile(fileobj=cast(IO[bytes], self._counted)).read1
        elif ending == ".xz":
            self._read = lzma.LZMAFile(cast(IO[bytes], self._counted)).read1  # noqa: SIM115
        elif ending == ".zst":
            self._read = pa.CompressedInputStream(pa.PythonFile(self._counted, "r"), "zstd").read
        else:
            self._read = self._counted.read
        self.compression = ending

    @property
    def done(self) -> int:
        """Bytes of the file on disk that were read."""
        return self._counted.done

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end.

        Raises
        ------
        Damaged
            The archive cannot be unpacked; what could be was returned before.
        """
        pieces: list[bytes] = []
        while size > 0:
            try:
                piece = self._read(min(size, _PIECE))
            except (lzma.LZMAError, EOFError, gzip.BadGzipFile, OSError, ValueError) as error:
                if not self.compression:
                    raise
                if pieces:
                    self._read = _broken(error)
                    break
                raise Damaged(str(error)) from error
            if not piece:
                break
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Close the file."""
        self._raw.close()


class _Counted:
    """Counts what is read."""

    closed = False

    def __init__(self, raw: io.BufferedReader[io.RawIOBase]) -> None:
        self._raw = raw
        self.done = 0

    def read(self, size: int = -1) -> bytes:
        piece = self._raw.read(size)
        self.done += len(piece)
        return piece

    def close(self) -> None:
        """Do nothing: Arrow closes what it reads, but the file is ours."""


def _broken(error: Exception) -> Callable[[int], bytes]:
    """Return a reader that says once more that the archive is damaged."""

    def read(size: int) -> bytes:
        raise OSError(str(error))

    return read


@contextmanager
def seekable(raw: IO[bytes], path: Path | None) -> Iterator[tuple[Path, str]]:
    """Yield a file to read at any place, `path` itself or an unpacked copy, and its compression.

    Raises
    ------
    Damaged
        The archive cannot be unpacked.
    """
    stream = Stream(raw)
    if path is not None and not stream.compression:
        yield path, ""
        return
    with tempfile.NamedTemporaryFile(prefix="shortlist-load-") as copy:
        shutil.copyfileobj(cast(IO[bytes], stream), copy, _PIECE)
        copy.flush()
        yield Path(copy.name), stream.compression
