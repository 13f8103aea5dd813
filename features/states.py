"""What the pipeline reads of users, items and interactions: plain records of arrays.

Sizes: n events of a history, m seen items, K categories of a user, N items, E examples.
Raw features are in the order of the spec; NaN stands for missing until
:mod:`features.encode` puts the default there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from features.spec import names

KeyArray = NDArray[np.int64]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]


@dataclass(slots=True)
class UserState:
    """A user at one moment.

    Attributes
    ----------
    user_id : str
        External id.
    known : bool
        Whether the database has the user.
    item_keys : (n,) int64
        Items of the latest events, oldest first.
    values : (n,) float32
        Value of each of these events, NaN where it has none.
    times : (n,) float64
        Unix seconds of each of these events.
    seen_keys : (m,) int64
        Every item the user ever interacted with, ascending.
    features : (Fu,) float32
        Raw user features.
    category_names : list of str
        Categories of the user's items, ascending; the unit of the next two.
    category_events : (K,) float32
        Events with items of each category.
    category_value_sums : (K,) float32
        Sum of the values of these events; an event without a value adds 0.
    as_of : float
        Unix seconds; only events before it are counted.
    snapshot : str
        What the read saw, as ``pg_current_snapshot()`` writes it; empty for a state as of a
        moment and for one that was not read.
    """

    user_id: str
    known: bool
    item_keys: KeyArray
    values: FloatArray
    times: DoubleArray
    seen_keys: KeyArray
    features: FloatArray
    category_names: list[str]
    category_events: FloatArray
    category_value_sums: FloatArray
    as_of: float
    snapshot: str = ""


def cold_state(user_id: str, now: float) -> UserState:
    """Return the state of a user of whom nothing is known at `now` (unix seconds)."""
    features = np.full(len(names("user")), np.nan, np.float32)
    for position, name in enumerate(names("user")):
        if name.startswith("user_events") or name == "user_active_days":
            features[position] = 0.0
    return UserState(
        user_id=user_id,
        known=False,
        item_keys=np.empty(0, np.int64),
        values=np.empty(0, np.float32),
        times=np.empty(0, np.float64),
        seen_keys=np.empty(0, np.int64),
        features=features,
        category_names=[],
        category_events=np.empty(0, np.float32),
        category_value_sums=np.empty(0, np.float32),
        as_of=now,
    )


@dataclass(slots=True)
class Catalogue:
    """Items as the database has them, ascending by key.

    Attributes
    ----------
    item_keys : (N,) int64
        Keys of the database, ascending.
    item_ids : list of str
        External ids.
    fields : list of bytes
        One JSON object an item: ``title``, ``categories`` and the attributes.
    categories : list of tuple of str
        Categories of each item.
    created_at : (N,) float64
        Unix seconds, NaN where unknown.
    available : (N,) bool
        Whether the item may be recommended.
    features : (N, Fi) float32
        Raw item features as of the last refresh; an item added since then has no events.
    features_as_of : float
        Unix seconds of the last refresh; NaN when there are no items.
    features_snapshot : str
        What that refresh saw, as text of ``pg_snapshot``; "" before the first.
    watermark : int
        Give it to :func:`features.items.changed_items` to read what changed afterwards.
    """

    item_keys: KeyArray
    item_ids: list[str]
    fields: list[bytes]
    categories: list[tuple[str, ...]]
    created_at: DoubleArray
    available: NDArray[np.bool_]
    features: FloatArray
    features_as_of: float
    features_snapshot: str
    watermark: int


@dataclass(frozen=True, slots=True)
class ItemFeatures:
    """The raw features of all items as of one refresh.

    Attributes
    ----------
    item_keys : (N,) int64
        Keys of the database.
    features : (N, Fi) float32
        In the order of the spec, NaN where missing.
    as_of : float
        Unix seconds of the refresh.
    snapshot : str
        What the refresh saw, as PostgreSQL writes it; empty where there was none.
    """

    item_keys: KeyArray
    features: FloatArray
    as_of: float
    snapshot: str


@dataclass(slots=True)
class Interactions:
    """All interactions, sorted by user key, time and interaction id.

    Attributes
    ----------
    user_keys, item_keys, interaction_ids : (n,) int64
        Keys of the database.
    values : (n,) float32
        Value of each event, NaN where it has none.
    times : (n,) float64
        Unix seconds.
    user_ids : dict of int to str
        External id for each user key.
    """

    user_keys: KeyArray
    item_keys: KeyArray
    interaction_ids: KeyArray
    values: FloatArray
    times: DoubleArray
    user_ids: dict[int, str]
