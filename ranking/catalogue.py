"""The catalogue that requests see: a release's arrays with live changes laid over them.

One thread writes (:meth:`LiveCatalogue.apply`), any number reads. There is no lock: a change
builds new arrays, or appends behind the end of what readers hold, and then replaces
:attr:`LiveCatalogue.items` in one assignment. A request takes that once and keeps it. What
finds rows and ids is extended before, so a row that a reader holds always has an id; rows found
by id may be newer than the :class:`~ranking.types.Items` of a request, which drops them.

The vector of an item that the release knows changes with the next release only; its availability,
fields and categories change here, and the features of all items with each refresh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.encode import encode_items
from features.states import Catalogue, ItemFeatures
from ranking.id_map import IdMap
from ranking.types import FloatArray, Items, RowArray

Embed = Callable[[Sequence[bytes], Sequence[Sequence[str]]], FloatArray]
"""Fields (JSON objects) and categories of n new items to item vectors (n, d)."""


@dataclass(frozen=True, slots=True)
class ItemTable:
    """The items of a release.

    Attributes
    ----------
    ids : IdMap
        External ids.
    keys : (N,) int64
        Keys of the database.
    field_text : (T,) uint8
        The fields of all items, one JSON object each, end to end.
    field_offsets : (N + 1,) int64
        Row r's object is ``field_text[field_offsets[r]:field_offsets[r + 1]]``.
    category_names : tuple of str
        Columns of ``items.categories``.
    items : Items
        All other arrays.
    watermark : int
        State of the database that they show.
    features_as_of : float
        Unix seconds of the refresh that the release was built after; NaN where unknown.
    """

    ids: IdMap
    keys: RowArray
    field_text: NDArray[np.uint8]
    field_offsets: RowArray
    category_names: tuple[str, ...]
    items: Items
    watermark: int
    features_as_of: float = math.nan


class LiveCatalogue:
    """Items of a release and what changed since.

    Parameters
    ----------
    table : ItemTable
        Of a release; never written to.
    embed : callable or None
        Gives new items their vectors; None leaves new items out.
    """

    def __init__(self, table: ItemTable, embed: Embed | None = None) -> None:
        self.items = table.items
        self.category_names = table.category_names
        self.watermark = table.watermark
        self.release_as_of = table.features_as_of
        self._table = table
        self._embed = embed
        self._base = len(table.items)
        self._field_text = memoryview(table.field_text)  # type: ignore[arg-type]  # NumPy stubs
        self._columns = {name: at for at, name in enumerate(table.category_names)}
        self._new_ids: list[str] = []
        self._new_keys: list[int] = []
        self._new_rows: dict[str, int] = {}
        self._fields: dict[int, bytes] = {}
        self._row_of_key = np.full(int(table.keys.max(initial=-1)) + 1, -1, np.int32)
        self._row_of_key[table.keys] = np.arange(self._base)
        self._buffers: dict[str, NDArray[Any]] = {}

    def row(self, item_id: str) -> int:
        """Return the row of an external id, -1 if there is none."""
        row = self._table.ids.row(item_id)
        return row if row >= 0 else self._new_rows.get(item_id, -1)

    def rows(self, item_ids: Iterable[str]) -> RowArray:
        """Return the rows of external ids (n,), -1 where there is none."""
        return np.array([self.row(item_id) for item_id in item_ids], np.int64)

    def id(self, row: int) -> str:
        """Return the external id of a row."""
        return self._table.ids.id(row) if row < self._base else self._new_ids[row - self._base]

    def ids(self, rows: RowArray) -> list[str]:
        """Return the external ids of rows (n,)."""
        if len(self.items) == self._base:
            return self._table.ids.ids(rows)
        return [self.id(row) for row in rows.tolist()]

    def key(self, row: int) -> int:
        """Return the database key of a row."""
        return int(self._table.keys[row]) if row < self._base else self._new_keys[row - self._base]

    def fields(self, row: int) -> bytes:
        """Return the fields of a row as one JSON object."""
        changed = self._fields.get(row)
        if changed is not None:
            return changed
        start, end = self._table.field_offsets[row : row + 2]
        return bytes(self._field_text[start:end])

    def rows_of_keys(self, keys: RowArray) -> RowArray:
        """Return the rows of keys of the database (n,), -1 where there is none."""
        table = self._row_of_key
        inside = keys < len(table)
        if inside.all():
            return table[keys].astype(np.int64)
        out = np.full(len(keys), -1, np.int64)
        out[inside] = table[keys[inside]]
        return out

    def keys(self, rows: RowArray) -> RowArray:
        """Return the database keys of rows (n,)."""
        if len(rows) and int(rows.max()) >= self._base:
            every = np.concatenate([self._table.keys, np.array(self._new_keys, np.int64)])
            return every[rows]
        return self._table.keys[rows]

    def columns(self, categories: Iterable[str]) -> RowArray:
        """Return the columns of ``items.categories`` for names; unknown ones are left out."""
        return np.array([self._columns[n] for n in categories if n in self._columns], np.int64)

    def spread(self, names: Sequence[str], values: FloatArray) -> FloatArray:
        """Place values by category name into the columns of ``items.categories``; (K,)."""
        out = np.zeros(len(self.category_names) + 1, np.float32)  # unknown names go last
        out[[self._columns.get(name, -1) for name in names]] = values
        return out[:-1]

    def apply(self, changed: Catalogue) -> tuple[int, int]:
        """Lay changes of the database over the release.

        Parameters
        ----------
        changed : Catalogue
            Items changed since :attr:`watermark` (:func:`features.events.changed_items`).

        Returns
        -------
        updated, added : int
            Items that were there before, and new ones.
        """
        rows = self.rows_of_keys(changed.item_keys)
        old, new = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
        items = self.items
        before = len(items)
        if len(old):
            items = self._update(items, changed, old, rows[old])
        if len(new) and self._embed is not None:
            items = self._extend(items, changed, new, self._embed)
        self.items = items
        self.watermark = changed.watermark
        added = len(items) - before
        return len(old), added

    def take_features(self, fresh: ItemFeatures, keep_raw: bool = False) -> None:
        """Put the features of a refresh in the place of those before.

        Parameters
        ----------
        fresh : ItemFeatures
            Of all items; an item that is missing takes the defaults.
        keep_raw : bool
            Keep the raw values too: for answers whose features are logged.
        """
        items = self.items
        raw = np.full((len(items), fresh.features.shape[1]), np.nan, np.float32)
        rows = self.rows_of_keys(fresh.item_keys)
        known = (rows >= 0) & (rows < len(items))
        raw[rows[known]] = fresh.features[known]
        self.items = replace(
            items,
            features=encode_items(raw),
            features_as_of=fresh.as_of,
            features_snapshot=fresh.snapshot,
            raw_features=raw if keep_raw else None,
        )

    def _update(self, items: Items, changed: Catalogue, at: RowArray, rows: RowArray) -> Items:
        for place, row in zip(at.tolist(), rows.tolist(), strict=True):
            self._fields[row] = changed.fields[place]
        available = items.available.copy()
        available[rows] = changed.available[at]
        flags = self._flags([changed.categories[place] for place in at.tolist()])
        categories = items.categories
        if (categories[rows] != flags).any():
            categories = categories.copy()
            categories[rows] = flags
        return replace(items, available=available, categories=categories)

    def _extend(self, items: Items, changed: Catalogue, at: RowArray, embed: Embed) -> Items:
        fields = [changed.fields[place] for place in at.tolist()]
        categories = [changed.categories[place] for place in at.tolist()]
        first, n = len(items), len(at)
        for place, (index, text) in enumerate(zip(at.tolist(), fields, strict=True)):
            self._fields[first + place] = text
            self._new_ids.append(changed.item_ids[index])
            self._new_keys.append(int(changed.item_keys[index]))
            self._new_rows[changed.item_ids[index]] = first + place
        self._grow_keys(changed.item_keys[at], first)
        M = items.neighbours.shape[1]
        raw = items.raw_features
        if raw is not None:
            raw = self._append("raw_features", raw, changed.features[at])
        return replace(
            items,
            vectors=self._append("vectors", items.vectors, embed(fields, categories)),
            available=self._append("available", items.available, changed.available[at]),
            created=self._append("created", items.created, changed.created_at[at]),
            categories=self._append("categories", items.categories, self._flags(categories)),
            features=self._append("features", items.features, encode_items(changed.features[at])),
            neighbours=self._append("neighbours", items.neighbours, np.full((n, M), -1)),
            neighbour_scores=self._append(
                "neighbour_scores", items.neighbour_scores, np.zeros((n, M))
            ),
            covisits=self._append(
                "covisits", items.covisits, np.full((n, items.covisits.shape[1]), -1)
            ),
            covisit_pairs=self._append(
                "covisit_pairs", items.covisit_pairs, np.zeros((n, items.covisits.shape[1]))
            ),
            ease=self._append("ease", items.ease, np.full((n, items.ease.shape[1]), -1)),
            ease_weights=self._append(
                "ease_weights", items.ease_weights, np.zeros((n, items.ease.shape[1]))
            ),
            raw_features=raw,
        )

    def _append(self, name: str, held: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
        """Return `held` with `new` behind it, in a buffer that has room for more."""
        n, m = len(held), len(new)
        buffer = self._buffers.get(name)
        if buffer is None or held.base is not buffer or n + m > len(buffer):
            buffer = np.empty((n + m + max(64, (n + m) // 8), *held.shape[1:]), held.dtype)
            buffer[:n] = held
            self._buffers[name] = buffer
        # Readers hold views that end at n, so nobody sees these places change.
        buffer[n : n + m] = new
        return buffer[: n + m]

    def _grow_keys(self, keys: RowArray, first: int) -> None:
        table = self._row_of_key
        top = int(keys.max()) + 1
        if top > len(table):
            table = np.concatenate([table, np.full(top - len(table) + top // 8 + 64, -1, np.int32)])
        table[keys] = np.arange(first, first + len(keys))
        self._row_of_key = table

    def _flags(self, categories: Sequence[Sequence[str]]) -> NDArray[np.uint8]:
        flags = np.zeros((len(categories), len(self.category_names)), np.uint8)
        for place, names in enumerate(categories):
            flags[place, self.columns(names)] = 1
        return flags
