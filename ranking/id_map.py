"""External string ids <-> dense rows, in arrays that can be mapped from a release.

A Python dict of ten million strings costs more than a gigabyte a process and cannot be shared;
here the ids are one byte string with offsets, and a sorted table of 64-bit hashes finds a row
by binary search. Equal hashes are told apart by comparing the bytes.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.errors import InputError
from ranking.arrays import map_array
from ranking.types import RowArray

FILES = ("ids.npy", "id_offsets.npy", "id_hashes.npy", "id_hash_rows.npy")


def _hash(text: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class IdMap:
    """A one-to-one map between external ids and rows 0..N-1.

    Parameters
    ----------
    text : (T,) uint8
        All ids in row order, UTF-8, end to end.
    offsets : (N + 1,) int64
        Row r's id is ``text[offsets[r]:offsets[r + 1]]``.
    hashes : (N,) uint64
        Hashes of the ids, ascending.
    hash_rows : (N,) int64
        The row of each hash.
    """

    def __init__(
        self,
        text: NDArray[np.uint8],
        offsets: RowArray,
        hashes: NDArray[np.uint64],
        hash_rows: RowArray,
    ) -> None:
        self._arrays: tuple[NDArray[Any], ...] = (text, offsets, hashes, hash_rows)
        self._text = memoryview(text)  # type: ignore[arg-type]  # NumPy < 2.5 stubs
        self._offsets = offsets
        self._hashes = hashes
        self._hash_rows = hash_rows

    @classmethod
    def from_ids(cls, ids: Sequence[str]) -> IdMap:
        """Build the map that gives ``ids[r]`` the row r.

        Raises
        ------
        InputError
            If an id occurs twice.
        """
        encoded = [item_id.encode() for item_id in ids]
        offsets = np.zeros(len(ids) + 1, np.int64)
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        hashes = np.array([_hash(text) for text in encoded], np.uint64)
        order = np.argsort(hashes, kind="stable").astype(np.int64)
        hashes = hashes[order]
        if len(set(encoded)) != len(encoded):
            twice = next(item_id for item_id, times in Counter(ids).items() if times > 1)
            raise InputError(f"item id {twice!r} occurs twice; ids must be unique")
        text = np.frombuffer(b"".join(encoded), np.uint8)
        return cls(text, offsets, hashes, order)

    def __len__(self) -> int:
        """Return N."""
        return len(self._hashes)

    def id(self, row: int) -> str:
        """Return the external id of a row in 0..N-1."""
        return str(self._text[self._offsets[row] : self._offsets[row + 1]], "utf-8")

    def ids(self, rows: RowArray) -> list[str]:
        """Return the external ids of rows (n,) in 0..N-1."""
        text = self._text
        starts, ends = self._offsets[rows].tolist(), self._offsets[rows + 1].tolist()
        return [str(text[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]

    def row(self, item_id: str) -> int:
        """Return the row of an external id, -1 if there is none."""
        try:
            text = item_id.encode()
        except UnicodeEncodeError:  # a lone surrogate, which no stored id can hold
            return -1
        wanted = np.uint64(_hash(text))
        at = int(np.searchsorted(self._hashes, wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            row = int(self._hash_rows[at])
            if self._text[self._offsets[row] : self._offsets[row + 1]] == text:
                return row
            at += 1
        return -1

    def rows(self, item_ids: Iterable[str]) -> RowArray:
        """Return the rows of external ids, -1 where there is none; shape (n,)."""
        return np.array([self.row(item_id) for item_id in item_ids], np.int64)

    def save(self, directory: Path) -> None:
        """Write the map as four .npy files (:data:`FILES`)."""
        for name, array in zip(FILES, self._arrays, strict=True):
            np.save(directory / name, array)

    @classmethod
    def load(cls, directory: Path) -> IdMap:
        """Map the files that :meth:`save` wrote, read-only."""
        return cls(*(map_array(directory / name) for name in FILES))
