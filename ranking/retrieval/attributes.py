"""Item attributes as numbers: what the item tower knows of an item before its first event."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from features.errors import ConfigError
from ranking.types import FloatArray

_MAX_CATEGORIES = 512
_MAX_NUMERIC = 16
_BINS = 10
# An attribute that fewer items have says more about who filled it in than about the items.
_MIN_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class NumericAttribute:
    """Scaling of one numeric attribute.

    Attributes
    ----------
    name : str
        Key in the item's fields.
    mean, std : float
        Of the items that have it, in the unit of the data; `std` is positive.
    edges : tuple of float
        Ascending quantiles that separate the bins.
    """

    name: str
    mean: float
    std: float
    edges: tuple[float, ...]

    @property
    def width(self) -> int:
        """Columns it takes: value, missing flag, one for each bin."""
        return 3 + len(self.edges)


@dataclass(frozen=True, slots=True)
class ItemAttributes:
    """The vocabulary that turns fields of an item into columns, fixed at training time.

    Attributes
    ----------
    categories : tuple of str
        Category names in column order.
    numeric : tuple of NumericAttribute
        Numeric attributes in column order, after the categories.
    """

    categories: tuple[str, ...]
    numeric: tuple[NumericAttribute, ...]

    @property
    def width(self) -> int:
        """Number of columns Fa: categories, the flag for none, the numeric attributes."""
        return len(self.categories) + 1 + sum(attribute.width for attribute in self.numeric)

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable copy."""
        return {
            "categories": list(self.categories),
            "numeric": [
                {"name": a.name, "mean": a.mean, "std": a.std, "edges": list(a.edges)}
                for a in self.numeric
            ],
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ItemAttributes:
        """Return the vocabulary that :meth:`to_dict` wrote.

        Raises
        ------
        ConfigError
            If a key is missing or has another type.
        """
        try:
            return cls(
                categories=tuple(map(str, stored["categories"])),
                numeric=tuple(
                    NumericAttribute(
                        str(entry["name"]),
                        float(entry["mean"]),
                        float(entry["std"]),
                        tuple(map(float, entry["edges"])),
                    )
                    for entry in stored["numeric"]
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"item attributes: {error!r}, expected keys 'categories' and 'numeric' as "
                "written by training; train again"
            ) from error


def learn_attributes(
    fields: Sequence[bytes], categories: Sequence[Sequence[str]]
) -> ItemAttributes:
    """Learn the vocabulary from a catalogue.

    Parameters
    ----------
    fields : sequence of bytes
        One JSON object an item.
    categories : sequence of sequence of str
        Categories of each item; the most frequent 512 get a column.

    Returns
    -------
    ItemAttributes
        Numeric attributes are those that at least a tenth of the items have as a number.
    """
    counts = Counter(name for names in categories for name in names)
    kept = sorted(name for name, _ in counts.most_common(_MAX_CATEGORIES))
    found: dict[str, list[float]] = {}
    for text in fields:
        for name, value in _numbers(json.loads(text)):
            found.setdefault(name, []).append(value)
    wanted = max(1, int(np.ceil(_MIN_SHARE * len(fields))))
    usual = sorted((-len(values), name) for name, values in found.items() if len(values) >= wanted)
    names = sorted(name for _, name in usual[:_MAX_NUMERIC])
    return ItemAttributes(tuple(kept), tuple(_scaling(name, found[name]) for name in names))


def item_attributes(
    fields: Sequence[bytes], categories: Sequence[Sequence[str]], vocabulary: ItemAttributes
) -> FloatArray:
    """Return the columns of `vocabulary` for each item.

    Parameters
    ----------
    fields : sequence of bytes
        One JSON object an item.
    categories : sequence of sequence of str
        Unknown categories are ignored.
    vocabulary : ItemAttributes

    Returns
    -------
    (n, Fa) float32
        The input ``attributes`` of ``item_tower.onnx``; always finite.
    """
    n, width = len(fields), len(vocabulary.categories)
    columns = np.zeros((n, vocabulary.width), np.float32)
    place = {name: column for column, name in enumerate(vocabulary.categories)}
    pairs = [
        (row, place[name])
        for row, names in enumerate(categories)
        for name in names
        if name in place
    ]
    if pairs:
        columns[tuple(np.array(pairs).T)] = 1.0
    # Length 1 however many categories: an item with six is not six times as much an item.
    norm = np.sqrt(columns[:, :width].sum(axis=1, keepdims=True))
    columns[:, :width] /= np.maximum(norm, 1.0)
    columns[:, width] = norm[:, 0] == 0
    numbers = [dict(_numbers(json.loads(text))) for text in fields] if vocabulary.numeric else []
    at = width + 1
    for attribute in vocabulary.numeric:
        raw = np.array([row.get(attribute.name, np.nan) for row in numbers], np.float64)
        missing = ~np.isfinite(raw)
        scaled = np.clip((np.where(missing, attribute.mean, raw) - attribute.mean), -1e30, 1e30)
        columns[:, at] = np.clip(scaled / attribute.std, -4.0, 4.0)
        columns[:, at + 1] = missing
        bins = np.searchsorted(attribute.edges, raw, side="right")
        present = np.flatnonzero(~missing)
        columns[present, at + 2 + bins[present]] = 1.0
        at += attribute.width
    return columns


def _numbers(item: object) -> Iterable[tuple[str, float]]:
    if isinstance(item, dict):
        for name, value in item.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                number = float(value)
                if np.isfinite(number):
                    yield str(name), number


def _scaling(name: str, values: list[float]) -> NumericAttribute:
    numbers = np.array(values)
    inner = np.unique(np.quantile(numbers, np.arange(1, _BINS) / _BINS))
    std = float(numbers.std())
    return NumericAttribute(
        name, float(numbers.mean()), std if std > 0 else 1.0, tuple(inner.tolist())
    )
