"""Requests and answers of the API: the only declaration of their fields, types and limits.

Decoding is strict: unknown fields, wrong types and values beyond a limit are refused. The
OpenAPI document is generated from these classes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

# Written for both regular-expression dialects: Python's here, ECMA's in the OpenAPI document.
_NO_NUL = "^[^\\x00]*$"

MAX_COUNT = 500
MAX_EXCLUDED = 1000
MAX_HISTORY = 1000
MAX_ROWS = 1000

Id = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=256,
        pattern=_NO_NUL,
        description="External id: 1 to 256 characters, no NUL.",
    ),
]
Label = Annotated[str, Meta(min_length=1, max_length=64, pattern=_NO_NUL)]
Category = Annotated[str, Meta(min_length=1, max_length=256, pattern=_NO_NUL)]
Text = Annotated[str, Meta(max_length=4096, pattern=_NO_NUL)]
Count = Annotated[
    int, Meta(ge=1, le=MAX_COUNT, description=f"Items wanted, 1 to {MAX_COUNT}.", examples=[10])
]
Moment = Annotated[
    datetime, Meta(tz=True, description="RFC 3339 with an offset, for example `…T09:30:00Z`.")
]
# No item has a field without a name, so that ``fields=`` in a query asks for none.
FieldNames = Annotated[
    list[Annotated[str, Meta(max_length=64, pattern=_NO_NUL)]],
    Meta(
        max_length=64,
        description="Item fields to send inline; left out: all, an empty list or name: none.",
        examples=[["title"]],
    ),
]


class HistoryEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One interaction that a request brings along."""

    item_id: Id
    value: Annotated[
        float | None, Meta(description="Strength, in the unit of the data (MovieLens: stars).")
    ] = None
    occurred_at: Annotated[Moment | None, Meta(description="Left out: now.")] = None


class RecommendationRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Who the list is for and what it may hold. Only `user_id` is required."""

    user_id: Annotated[
        Id, Meta(description="An unknown user gets a cold-start list.", examples=["1"])
    ]
    count: Count = 20
    scenario: Annotated[
        Label | None, Meta(description="Where the list is shown; stored with the impressions.")
    ] = None
    context_item_ids: Annotated[
        list[Id],
        Meta(max_length=100, description="Items the user looks at now: latest, not stored."),
    ] = []
    history: Annotated[
        Annotated[list[HistoryEntry], Meta(max_length=MAX_HISTORY)] | None,
        Meta(description="Oldest first; replaces the stored history, for anonymous users."),
    ] = None
    exclude_item_ids: Annotated[
        list[Id], Meta(max_length=MAX_EXCLUDED, description="Never returned.")
    ] = []
    exclude_seen: Annotated[
        bool, Meta(description="Leave out every item the user interacted with.")
    ] = True
    categories: Annotated[
        list[Category],
        Meta(max_length=64, description="Only items with at least one of these categories."),
    ] = []
    diversity: Annotated[
        float, Meta(ge=0, le=1, description="0 ranks by score alone, 1 by dissimilarity alone.")
    ] = 0.0
    category_cap: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None,
        Meta(description="Most items that share their first category."),
    ] = None
    pins: Annotated[
        list[Id], Meta(max_length=100, description="Placed first, in this order, if available.")
    ] = []
    fields: FieldNames | None = None
    deadline_ms: Annotated[
        Annotated[int, Meta(ge=1, le=60_000)] | None,
        Meta(description="The answer is worthless after this, in milliseconds from its arrival."),
    ] = None
    request_id: Annotated[
        Id | None, Meta(description="The same user and request id get the same answer again.")
    ] = None


class SourceOut(Struct, frozen=True):
    """A candidate source that found the item."""

    name: str
    rank: Annotated[int, Meta(ge=0, description="Position in the source's list, from 0.")]
    score: Annotated[float | None, Meta(description="In the source's own unit.")]


class ItemOut(Struct, omit_defaults=True):
    """One recommended item."""

    id: str
    score: float | None
    sources: list[SourceOut]
    fields: Annotated[msgspec.Raw | UnsetType, Meta(description="As asked for.")] = UNSET


class NoteOut(Struct, frozen=True):
    """A remark on an answer."""

    code: Annotated[str, Meta(description="`cold_start`, `short`, …", examples=["cold_start"])]
    detail: str


class FeatureGroup(Struct, frozen=True):
    """The moment that a group of features holds for."""

    as_of: Annotated[
        str | None, Meta(description="Events before it are in the features, RFC 3339.")
    ]
    expired: Annotated[
        bool, Meta(description="Beyond its maximum age: the features took their defaults.")
    ]


class FeatureGroups(Struct, frozen=True):
    """The groups of the feature spec."""

    user: Annotated[FeatureGroup, Meta(description="Read with the request.")]
    item: Annotated[FeatureGroup, Meta(description="Of the last refresh.")]
    cross: Annotated[FeatureGroup, Meta(description="Read with the request.")]
    candidate: Annotated[FeatureGroup, Meta(description="Co-visitation: of the release.")]


class Recommendations(Struct):
    """A ranked list, and what led to it."""

    rec_id: Annotated[str, Meta(description="UUIDv7 of this answer; impressions carry it.")]
    request_id: str | None
    release: Annotated[str, Meta(description="The release that answered.")]
    as_of: Annotated[str, Meta(description="The moment the user's state was read, RFC 3339.")]
    features: FeatureGroups
    status: Annotated[
        Literal["ok", "degraded", "short"],
        Meta(description="short: fewer items than asked for; degraded: a stage was left out."),
    ]
    notes: list[NoteOut]
    requested: int
    returned: int
    counts: Annotated[
        dict[str, int],
        Meta(description="retrieved = filtered + ranked; then filtered items by reason."),
    ]
    timing_ms: Annotated[
        dict[str, float],
        Meta(description="Milliseconds of each stage in order, and their `total`."),
    ]
    items: list[ItemOut]


class SimilarItems(Struct):
    """The items nearest to one item."""

    item_id: str
    release: str
    requested: int
    returned: int
    timing_ms: dict[str, float]
    items: list[ItemOut]


class Event(Struct, frozen=True, forbid_unknown_fields=True):
    """Something a user did with an item."""

    event_id: Annotated[Id, Meta(description="Idempotency key: sent twice, it counts once.")]
    user_id: Annotated[Id, Meta(description="A new user is created.")]
    item_id: Annotated[Id, Meta(description="Must exist, or the row is rejected.")]
    event_type: Annotated[Label, Meta(description="view, rating, purchase, …")] = "view"
    value: Annotated[float | None, Meta(description="Strength, in the unit of the data.")] = None
    occurred_at: Annotated[Moment | None, Meta(description="Left out: now.")] = None


class Item(Struct, frozen=True, forbid_unknown_fields=True):
    """An item of the catalogue, whole: a put replaces what was there."""

    item_id: Id
    title: Annotated[str, Meta(max_length=1000, pattern=_NO_NUL)] | None = None
    categories: Annotated[list[Category], Meta(max_length=64)] = []
    attributes: Annotated[
        dict[Label, Text | int | float | bool | None],
        Meta(max_length=64, description="Further fields, served inline."),
    ] = {}
    available: bool = True
    created_at: Moment | None = None


class RowResult(Struct, omit_defaults=True):
    """What became of one row of a bulk call."""

    index: Annotated[int, Meta(description="Position in the request, from 0.")]
    status: Literal["accepted", "duplicate", "rejected"]
    id: Annotated[str | UnsetType, Meta(description="Event or item id, if it could be read.")] = (
        UNSET
    )
    code: Annotated[str | UnsetType, Meta(description="Why it was rejected.")] = UNSET
    detail: str | UnsetType = UNSET
    pointer: Annotated[str | UnsetType, Meta(description="JSON pointer into the request.")] = UNSET


class BulkResult(Struct):
    """What became of each row; good rows are kept whatever the others are."""

    accepted: int
    duplicate: int
    rejected: int
    results: list[RowResult]


class Retired(Struct):
    """An item that is no longer recommended."""

    id: str
    status: Literal["retired"]


class Erased(Struct):
    """A user of whom nothing is left."""

    id: str
    status: Literal["erased"]
    rows: Annotated[
        dict[str, int], Meta(description="Rows deleted, by table; all 0 for an unknown user.")
    ]


class ReleaseOut(Struct, omit_defaults=True):
    """One release on disk."""

    id: str
    serving: Annotated[bool, Meta(description="Whether the replica that answered serves it.")]
    current: Annotated[bool, Meta(description="Whether it is the promoted one.")]
    refused: Annotated[str | UnsetType, Meta(description="Why it could not be served.")] = UNSET


class Releases(Struct):
    """What is served, and what could be."""

    serving: Annotated[str | None, Meta(description="None: not ready.")]
    releases: list[ReleaseOut]


class Check(Struct):
    """One condition of readiness."""

    name: str
    passed: bool
    detail: str


class FeatureAge(Struct):
    """How old a group of features is that is not read with each request."""

    group: Literal["item", "candidate"]
    as_of: Annotated[str | None, Meta(description="RFC 3339; null where unknown.")]
    age_s: float | None
    max_age_s: float
    expired: Annotated[bool, Meta(description="The features take their defaults.")]


class Health(Struct, omit_defaults=True):
    """Whether the service lives (`/healthz`) or can answer (`/readyz`)."""

    status: Literal["ok", "not_ready"]
    checks: list[Check]
    features: Annotated[
        list[FeatureAge] | UnsetType, Meta(description="Of the release in service.")
    ] = UNSET
