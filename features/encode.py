"""From raw features to what a model reads: the same code for training and for serving.

Sizes: B requests, C candidates of each, N items, K categories; Fu, Fi, Fx features of the
groups ``user``, ``item`` and ``cross``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from features.errors import SpecMismatch
from features.spec import Group, group, names

FloatArray = NDArray[np.float32]


def _encode(raw: NDArray[np.float32], name: Group) -> FloatArray:
    """Put defaults where a value is missing or not finite, then transform each column."""
    features = group(name)
    if raw.ndim != 2 or raw.shape[1] != len(features):
        raise SpecMismatch(
            f"raw {name} features have shape {raw.shape}, expected (n, {len(features)}) in the"
            f" order {', '.join(names(name))}: build the release anew with this version"
        )
    defaults = np.array([feature.default for feature in features], np.float32)
    encoded = np.where(np.isfinite(raw), raw, defaults).astype(np.float32)
    logged = [at for at, feature in enumerate(features) if feature.transform == "log1p"]
    encoded[:, logged] = np.log1p(np.maximum(encoded[:, logged], 0.0))
    return encoded


def encode_users(raw: FloatArray) -> FloatArray:
    """Encode user features.

    Parameters
    ----------
    raw : (B, Fu) float32
        In the order and units of the spec, NaN where missing.

    Returns
    -------
    (B, Fu) float32
        Finite.

    Raises
    ------
    SpecMismatch
        The number of columns is not that of the spec.
    """
    return _encode(raw, "user")


def encode_items(raw: FloatArray) -> FloatArray:
    """Encode item features.

    Parameters
    ----------
    raw : (N, Fi) float32
        In the order and units of the spec, NaN where missing.

    Returns
    -------
    (N, Fi) float32
        Finite.

    Raises
    ------
    SpecMismatch
        The number of columns is not that of the spec.
    """
    return _encode(raw, "item")


def encode_cross(
    category_events: FloatArray,
    category_value_sums: FloatArray,
    item_categories: NDArray[np.uint8],
    rows: NDArray[np.int64],
) -> FloatArray:
    """Encode what a user's categories say of each candidate.

    ``cross_category_share`` is the mean, over the candidate's categories, of the category's
    share of all the user's category events; times the number of categories the user spread
    over it would be a lift. ``cross_category_value`` is the mean value of the user's events in
    the candidate's categories, an event without a value counting 0. Both are 0 for a user
    without events and for an item without categories.

    Parameters
    ----------
    category_events : (B, K) float32
        Events of each user by category.
    category_value_sums : (B, K) float32
        Sum of the values of these events.
    item_categories : (N, K) uint8
        1 where an item has a category.
    rows : (B, C) int64
        Candidates; padding of -1 gives 0.

    Returns
    -------
    (B, C, Fx) float32
        In the order ``names("cross")``; finite.
    """
    share, value = _positions()
    padded = rows < 0
    held = item_categories[np.where(padded, 0, rows)].astype(np.float32)  # (B, C, K)
    events = np.einsum("bck,bk->bc", held, category_events)
    sums = np.einsum("bck,bk->bc", held, category_value_sums)
    total = category_events.sum(axis=1, keepdims=True)
    width = held.sum(axis=2)
    encoded = np.zeros((*rows.shape, len(names("cross"))), np.float32)
    encoded[..., share] = events / np.maximum(total * width, 1.0)
    encoded[..., value] = np.where(events > 0, sums / np.maximum(events, 1.0), 0.0)
    encoded[padded] = 0.0
    return encoded


def _positions() -> tuple[int, int]:
    order = names("cross")
    return order.index("cross_category_share"), order.index("cross_category_value")
