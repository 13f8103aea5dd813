"""Which items a request may not get, and why.

Retrieval first searches without filters, wider than needed, and looks up only what it found
(:func:`reasons`): the cost depends on the candidates, not on the catalogue. Only where that
leaves a request short does it build the mask over all items (:func:`eligible`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranking.types import DROP_REASONS, BoolArray, DoubleArray, Items, RowArray

EXCLUDED, SEEN, UNAVAILABLE, CATEGORY, SURPLUS = range(1, len(DROP_REASONS) + 1)


@dataclass(frozen=True, slots=True)
class Filters:
    """Filters of B requests.

    Attributes
    ----------
    excluded : sequence of (m,) int64
        For each request, rows that it excludes by name.
    seen : sequence of (m,) int64
        For each request, rows that count as seen; empty if seen items are wanted.
    categories : sequence of (c,) int64 or None
        For each request, columns of :attr:`Items.categories` of which an item needs at least
        one; None allows every item, an empty array none.
    """

    excluded: Sequence[RowArray]
    seen: Sequence[RowArray]
    categories: Sequence[RowArray | None]

    @classmethod
    def none(cls, B: int) -> Filters:
        """Return filters that remove nothing but unavailable items."""
        nothing = np.empty(0, np.int64)
        return cls([nothing] * B, [nothing] * B, [None] * B)


def reasons(
    rows: RowArray, items: Items, filters: Filters, now: DoubleArray, scratch: NDArray[np.uint8]
) -> NDArray[np.uint8]:
    """Say for each retrieved row why it is not eligible.

    Parameters
    ----------
    rows : (B, K) int64
        Padding (-1) gets an arbitrary answer.
    items, filters
        The state of the catalogue and the filters of the B requests.
    now : (B,) float64
        Unix seconds; an item created later is unavailable.
    scratch : (N,) uint8
        Zeros; zeros again on return.

    Returns
    -------
    (B, K) uint8
        0 for eligible, else 1 + the first reason in :data:`DROP_REASONS` that applies.
    """
    out = np.where(
        items.available[rows] & ~(items.created[rows] > now[:, None]), 0, UNAVAILABLE
    ).astype(np.uint8)
    for b, columns in enumerate(filters.categories):
        if columns is not None:
            lacking = ~items.categories[rows[b][:, None], columns].any(axis=1)
            out[b][lacking & (out[b] == 0)] = CATEGORY
    for b, (seen, excluded) in enumerate(zip(filters.seen, filters.excluded, strict=True)):
        if not len(seen) and not len(excluded):
            continue
        scratch[seen] = SEEN
        scratch[excluded] = EXCLUDED
        marks = scratch[rows[b]]
        np.copyto(out[b], marks, where=marks > 0)
        scratch[seen] = 0
        scratch[excluded] = 0
    return out


def eligible(items: Items, filters: Filters, now: DoubleArray, b: int) -> BoolArray:
    """Return the mask (N,) of all items that request `b` may get."""
    mask: BoolArray = items.available & ~(items.created > now[b])
    columns = filters.categories[b]
    if columns is not None:
        mask &= items.categories[:, columns].any(axis=1)
    mask[filters.seen[b]] = False
    mask[filters.excluded[b]] = False
    return mask
