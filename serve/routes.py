"""The endpoints, declared once: the dispatcher, the OpenAPI document and the docs read this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from serve import schemas


class RecommendationQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Query parameters of the GET twin; a list is given by repeating its parameter."""

    count: schemas.Count = 20
    scenario: schemas.Label | UnsetType = UNSET
    context_item_ids: Annotated[list[schemas.Id], Meta(max_length=100)] = []
    exclude_item_ids: Annotated[list[schemas.Id], Meta(max_length=schemas.MAX_EXCLUDED)] = []
    exclude_seen: bool = True
    categories: Annotated[list[schemas.Category], Meta(max_length=64)] = []
    diversity: Annotated[float, Meta(ge=0, le=1)] = 0.0
    category_cap: Annotated[int, Meta(ge=1, le=schemas.MAX_COUNT)] | UnsetType = UNSET
    pins: Annotated[list[schemas.Id], Meta(max_length=100)] = []
    fields: schemas.FieldNames | UnsetType = UNSET
    deadline_ms: Annotated[int, Meta(ge=1, le=60_000)] | UnsetType = UNSET
    request_id: schemas.Id | UnsetType = UNSET


class SimilarQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Query parameters of similar items."""

    count: schemas.Count = 20
    fields: schemas.FieldNames | UnsetType = UNSET


@dataclass(frozen=True, slots=True)
class Route:
    """One endpoint.

    Attributes
    ----------
    name : str
        Operation id, and the label of its metrics.
    method : str
        HTTP method.
    path : str
        With at most one ``{id}``, which never contains a slash unless percent-encoded.
    summary, text : str
        For people.
    answer : type or None
        Body of the 200 answer; None for a page.
    body : type or None
        Body of the request.
    query : type or None
        Query parameters.
    problems : tuple of int
        Statuses of the problem documents it may answer beside 405.
    media : str
        Content type of the 200 answer.
    """

    name: str
    method: str
    path: str
    summary: str
    text: str
    answer: Any
    body: Any = None
    query: type[Struct] | None = None
    problems: tuple[int, ...] = ()
    media: str = "application/json"

    @property
    def segments(self) -> tuple[str, ...]:
        """The parts of the path between slashes."""
        return tuple(self.path.split("/")[1:])


_BODY = (400, 408, 413, 415, 422)
_BUSY = (429, 503)

ROUTES = (
    Route(
        "recommend",
        "POST",
        "/v1/recommendations",
        "Recommend items to a user",
        "Two fields suffice: `user_id` and `count`. An unknown user is never an error.",
        schemas.Recommendations,
        body=schemas.RecommendationRequest,
        problems=(*_BODY, *_BUSY),
    ),
    Route(
        "recommend_get",
        "GET",
        "/v1/users/{id}/recommendations",
        "Recommend items to a user, without a body",
        "The same answer as the POST; a list is given by repeating its parameter.",
        schemas.Recommendations,
        query=RecommendationQuery,
        problems=(422, *_BUSY),
    ),
    Route(
        "similar",
        "GET",
        "/v1/items/{id}/similar",
        "Items like an item",
        "The nearest available items by item vector.",
        schemas.SimilarItems,
        query=SimilarQuery,
        problems=(404, 422, 503),
    ),
    Route(
        "events",
        "POST",
        "/v1/events",
        "Record what users did",
        "One event or a list of up to 1,000. Idempotent by `event_id`. Answered after the commit, "
        "which requests that come at the same time share: the very next answer for the user counts "
        "them. Each row of a list is judged alone; a single event that is not valid is a 422.",
        schemas.BulkResult,
        body=schemas.Event | list[schemas.Event],
        problems=(*_BODY, *_BUSY),
    ),
    Route(
        "put_items",
        "PUT",
        "/v1/items",
        "Add or replace items",
        "One item or a list of up to 1,000. A new item can be recommended within a second. Each "
        "row of a list is judged alone; a single item that is not valid is a 422.",
        schemas.BulkResult,
        body=schemas.Item | list[schemas.Item],
        problems=(*_BODY, 503),
    ),
    Route(
        "delete_item",
        "DELETE",
        "/v1/items/{id}",
        "Retire an item",
        "It is never recommended again, until it is put again.",
        schemas.Retired,
        problems=(404, 422, 503),
    ),
    Route(
        "delete_user",
        "DELETE",
        "/v1/users/{id}",
        "Erase a user",
        "Deletes every row of the user: events, what was shown, features, aggregates. An unknown "
        "user is no error, so it may be repeated. An event that comes later makes a new user.",
        schemas.Erased,
        problems=(422, *_BUSY),
    ),
    Route(
        "releases",
        "GET",
        "/v1/releases",
        "Releases on disk",
        "Which one serves, which one is promoted, and why one was refused.",
        schemas.Releases,
    ),
    Route("healthz", "GET", "/healthz", "Is the service alive", "", schemas.Health),
    Route(
        "readyz",
        "GET",
        "/readyz",
        "Can the service answer",
        "Database reachable, release loaded, warmed up. 503 with the same body if not. Feature "
        "groups beyond their maximum age are named; they take defaults, which is no 503.",
        schemas.Health,
    ),
    Route(
        "metrics",
        "GET",
        "/metrics",
        "Metrics of all replicas of this machine",
        "Prometheus text format.",
        None,
        media="text/plain",
    ),
    Route("openapi", "GET", "/openapi.json", "This document", "", Any),
    Route(
        "docs", "GET", "/docs", "Documentation with a form to try it", "", None, media="text/html"
    ),
)


def structs() -> list[type[Struct]]:
    """Return every struct that a body or an answer is made of, roots only."""
    found: list[type[Struct]] = [schemas.Item, schemas.Event, schemas.RecommendationRequest]
    for route in ROUTES:
        if isinstance(route.answer, type) and issubclass(route.answer, msgspec.Struct):
            found.append(route.answer)
    return list(dict.fromkeys(found))
