"""What flows between the stages of the pipeline.

Sizes: B requests in a batch, L history length, C candidates a request, S candidate sources,
d vector width, N items of the release. Rows are positions in the release's arrays; ``-1``
pads short rows and never leaves this package.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
RowArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


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
        Item ids placed first, in this order, if available.
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


@dataclass(slots=True)
class Histories:
    """The latest events of B users, oldest first, padded at the end.

    Attributes
    ----------
    rows : (B, L) int64
        Release rows, -1 where padded.
    values : (B, L) float32
        Event values, 0 where padded.
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


@dataclass(slots=True)
class Candidates:
    """Merged candidates of B requests in coarse order, padded at the end.

    Attributes
    ----------
    rows : (B, C) int64
        Release rows, -1 where padded.
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
    dropped : list of dict
        For each request, how many retrieved rows each filter removed: keys ``seen``,
        ``unavailable``, ``excluded``, ``category``.
    """

    rows: RowArray
    coarse_scores: FloatArray
    ann_scores: FloatArray
    source_scores: FloatArray
    source_ranks: NDArray[np.int32]
    user_vectors: FloatArray
    dropped: list[dict[str, int]]


@dataclass(frozen=True, slots=True)
class SourceHit:
    """Where a returned item came from."""

    name: str
    rank: int
    score: float


@dataclass(frozen=True, slots=True)
class RankedItem:
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


@dataclass(slots=True)
class Ranking:
    """The answer to one :class:`Query`.

    Attributes
    ----------
    items : list of RankedItem
        At most ``query.count``, best first.
    counts : dict
        ``retrieved`` = ``filtered`` + ``ranked``, and one count for each filter.
    timing_ms : dict
        Milliseconds for each stage, in the order of the pipeline.
    notes : list of Note
        Every fallback and shortage.
    release : str
        Id of the release that answered.
    """

    items: list[RankedItem]
    counts: dict[str, int]
    timing_ms: dict[str, float]
    release: str
    notes: list[Note] = field(default_factory=list)
