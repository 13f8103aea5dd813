"""What flows between the stages of the pipeline.

Sizes: B requests in a batch, L history length, C candidates a request, S candidate sources,
d vector width, N items of the release. Rows are positions in the release's arrays; ``-1``
pads short rows and never leaves this package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
RowArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


class Progress(Protocol):
    """What long work reports to."""

    def __call__(self, step: str, done: int, total: int, detail: str = "", /) -> None:
        """Take a report: `total` is 0 where it is not known, `detail` a few words on the step."""


DAY = 86_400.0
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Items:
    """One consistent state of all per-item arrays: the release's, with live changes laid over.

    The arrays are read-only for everyone but their maker; a change makes a new :class:`Items`
    (:mod:`ranking.catalogue`), so a request that holds one never sees half a change.

    Attributes
    ----------
    vectors : (N, d) float32
        Output of the item tower.
    available : (N,) bool
        Whether an item may be returned.
    created : (N,) float64
        Unix seconds at which an item came to be, NaN where unknown. An item is not eligible
        before that moment, so that evaluation as of a past moment sees no future item.
    categories : (N, K) uint8
        1 where an item has a category of the release's list.
    features : (N, Fi) float32
        Encoded item features (:mod:`features.encode`).
    neighbours : (N, M) int32
        Items that go with an item, best first, -1 where there are fewer.
    neighbour_scores : (N, M) float32
        Their scores, 0 where padded.
    covisits : (N, P) int32
        Items that users came to right after an item, most often first, -1 where there are fewer;
        P may be 0.
    covisit_pairs : (N, P) float32
        How often they did.
    ease : (N, E) int32
        Items that an item of a history speaks for (:mod:`ranking.retrieval.ease`), strongest first,
        -1 where there are fewer; E may be 0.
    ease_weights : (N, E) float32
        Their weights, 0 where padded.
    trending : (T,) int32
        Rows by current popularity, best first.
    trending_scores : (T,) float32
        Their scores.
    features_as_of : float
        Unix seconds of the refresh that `features` are of; NaN where nobody asks.
    features_snapshot : str
        What that refresh saw, as PostgreSQL writes it; empty where unknown.
    raw_features : (N, Fi) float32 or None
        What `features` encode, NaN where missing; None where they are not kept.
    """

    vectors: FloatArray
    available: BoolArray
    created: DoubleArray
    categories: NDArray[np.uint8]
    features: FloatArray
    neighbours: NDArray[np.int32]
    neighbour_scores: FloatArray
    trending: NDArray[np.int32]
    trending_scores: FloatArray
    covisits: NDArray[np.int32]
    covisit_pairs: FloatArray
    ease: NDArray[np.int32]
    ease_weights: FloatArray
    features_as_of: float = math.nan
    features_snapshot: str = ""
    raw_features: FloatArray | None = None

    def __len__(self) -> int:
        """Return N."""
        return len(self.vectors)


@dataclass(frozen=True, slots=True)
class Covisits:
    """What users came to right after the latest item of each request.

    Attributes
    ----------
    rows : (B, P) int32
        -1 where there are fewer.
    pairs : (B, P) float32
        How often they did.
    """

    rows: NDArray[np.int32]
    pairs: FloatArray


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One interaction that a request brings along for a user without a stored history.

    Attributes
    ----------
    item_id : str
        External item id.
    value : float
        Strength of the interaction, in the unit of the data (MovieLens: stars).
    time : float or None
        Unix seconds; None means now.
    """

    item_id: str
    value: float | None = None
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One request for recommendations, validated, with external ids.

    Attributes
    ----------
    user_id : str
        External user id; an unknown one is served as a cold start.
    count : int
        Number of items wanted, at least 1.
    now : float
        Unix seconds; features and time gaps are taken as of this moment.
    history : tuple of HistoryEvent or None
        Oldest first; replaces the stored history when given.
    context_item_ids : tuple of str
        Items the user looks at now: treated as the latest events of the history, not stored.
    exclude_item_ids : frozenset of str
        Never returned.
    exclude_seen : bool
        Whether items of the user's history are left out.
    categories : frozenset of str
        When not empty, only items with at least one of these categories.
    diversity : float
        0 ranks by score alone, 1 by dissimilarity alone (MMR).
    category_cap : int or None
        At most this many items that share their first category.
    pins : tuple of str
        Item ids placed first, in this order, if available and not excluded.
    boosts : tuple of (str, float)
        Category and factor: above 1 raises the items of the category, below 1 lowers them.
    sampled : bool
        Whether the answer keeps the features that its candidates were ranked with.
    """

    user_id: str
    count: int
    now: float
    history: tuple[HistoryEvent, ...] | None = None
    context_item_ids: tuple[str, ...] = ()
    exclude_item_ids: frozenset[str] = frozenset()
    exclude_seen: bool = True
    categories: frozenset[str] = frozenset()
    diversity: float = 0.0
    category_cap: int | None = None
    pins: tuple[str, ...] = ()
    boosts: tuple[tuple[str, float], ...] = ()
    sampled: bool = False


@dataclass(slots=True)
class Histories:
    """The latest events of B users, oldest first, padded at the end; L is at least 1.

    Attributes
    ----------
    rows : (B, L) int64
        Release rows, -1 where padded.
    values : (B, L) float32
        Event values, NaN where an event has none, 0 where padded.
    times : (B, L) float64
        Unix seconds, 0 where padded.
    lengths : (B,) int64
        Events in each row; 0 for a cold start.
    now : (B,) float64
        Unix seconds of each request.
    """

    rows: RowArray
    values: FloatArray
    times: DoubleArray
    lengths: RowArray
    now: DoubleArray


DROP_REASONS = ("excluded", "seen", "unavailable", "category", "surplus")
"""Why a retrieved item is no candidate; ``surplus``: eligible, but beyond the list's length."""


@dataclass(slots=True)
class Candidates:
    """Merged candidates of B requests in coarse order, padded at the end.

    Attributes
    ----------
    rows : (B, C) int64
        Release rows, -1 where padded.
    vectors : (B, C, d) float32
        Item vectors of `rows`; arbitrary where padded.
    coarse_scores : (B, C) float32
        The score that orders them, highest first; -inf where padded.
    ann_scores : (B, C) float32
        Inner product of user and item vector for every candidate, whatever its source.
    source_scores : (B, C, S) float32
        Score that each source gave, NaN where it did not return the candidate.
    source_ranks : (B, C, S) int32
        0-based rank in each source, -1 where it did not return the candidate.
    user_vectors : (B, d) float32
        Output of the user tower.
    sources : tuple of str
        Names of the S sources, in the order of the last axis above.
    dropped : list of dict
        For each request, how many retrieved items were removed by each of
        :data:`DROP_REASONS`; an item counts once, under the first reason that applies.
        ``retrieved = sum(dropped) + candidates``.
    """

    rows: RowArray
    vectors: FloatArray
    coarse_scores: FloatArray
    ann_scores: FloatArray
    source_scores: FloatArray
    source_ranks: NDArray[np.int32]
    user_vectors: FloatArray
    sources: tuple[str, ...]
    dropped: list[dict[str, int]]


class SourceHit(msgspec.Struct, frozen=True, gc=False):
    """Where a returned item came from."""

    name: str
    rank: int
    score: float


class RankedItem(msgspec.Struct, frozen=True, gc=False):
    """One returned item with its final score and its sources."""

    row: int
    item_id: str
    score: float
    sources: tuple[SourceHit, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A machine-readable remark on an answer, such as ``cold_start`` or ``short``."""

    code: str
    detail: str


class Freshness(msgspec.Struct, frozen=True, gc=False):
    """The moment (unix seconds) that a group of features holds for, and if it is too long ago."""

    as_of: float
    expired: bool


@dataclass(frozen=True, slots=True)
class ServedFeatures:
    """Raw features that n candidates of one request were ranked with, NaN where missing.

    Attributes
    ----------
    item_keys : (n,) int64
        Keys of the database.
    user : (Fu,) float32
    items : (n, Fi) float32
    cross : (n, Fx) float32
    item_as_of : float
        Unix seconds of the refresh that `items` are of.
    item_snapshot : str
        What that refresh saw.
    """

    item_keys: RowArray
    user: FloatArray
    items: FloatArray
    cross: FloatArray
    item_as_of: float
    item_snapshot: str


@dataclass(slots=True)
class Ranking:
    """The answer to one :class:`Query`.

    Attributes
    ----------
    items : list of RankedItem
        At most ``query.count``, best first.
    counts : dict
        ``retrieved = filtered + ranked``, ``filtered`` = the sum over
        :data:`DROP_REASONS`, ``ranked + pinned = returned + capped + cut``: ``pinned`` are
        pins that retrieval did not find, ``capped`` fell to the category cap, ``cut`` ranked
        below the last item returned.
    timing_ms : dict
        Milliseconds for each stage, in the order of the pipeline.
    notes : list of Note
        Every fallback and shortage.
    release : str
        Id of the release that answered.
    freshness : dict of str to Freshness
        For each group of features.
    expired : list of str
        Groups whose features would have been used and were too old.
    served : ServedFeatures or None
        For a sampled query that the ranker ranked.
    """

    items: list[RankedItem]
    counts: dict[str, int]
    timing_ms: dict[str, float]
    release: str
    notes: list[Note] = field(default_factory=list)
    freshness: dict[str, Freshness] = field(default_factory=dict)
    expired: list[str] = field(default_factory=list)
    served: ServedFeatures | None = None
