"""Bad input on every endpoint: a documented 4xx, a problem document, and nothing half done."""

from __future__ import annotations

import json
import uuid
from urllib.parse import quote

import pytest

from features.database import connect
from serve.docs import PROBLEMS
from serve.routes import ROUTES

BODIES = [route for route in ROUTES if route.body is not None]
WITH_ID = [route for route in ROUTES if "{id}" in route.path]
GOOD = {
    "recommend": {"user_id": "1"},
    "events": {"event_id": "bad-input", "user_id": "1", "item_id": "1"},
    "put_items": {"item_id": "bad-input"},
}


def problem(answer, status: int, code: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"]) == (status, code)
    assert code in PROBLEMS
    assert PROBLEMS[code][0] == status
    assert body["detail"]
    assert body["type"] == f"/docs#problem-{code}"
    return body


def name(route) -> str:
    return route.name


@pytest.mark.parametrize("route", BODIES, ids=name)
@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"nonsense", 400, "invalid_json"),
        (b"\xff\xfe\x00", 400, "invalid_json"),
        (b"\xef\xbb\xbf{}", 400, "invalid_json"),
        (b"null", 422, "invalid_field"),
        (b"17", 422, "invalid_field"),
        (b'"text"', 422, "invalid_field"),
        (b"{}", 422, "missing_field"),
        (b'{"nonsense": 1}', 422, "unknown_field"),
        (b"x" * 10_000_000, 413, "body_too_large"),
    ],
    ids=lambda value: repr(value[:12]) if isinstance(value, bytes) else str(value),
)
def test_bodies(api, route, content, status, code):
    headers = {"content-type": "application/json"}
    answer = api.client.request(route.method, route.path, content=content, headers=headers)
    problem(answer, status, code)


@pytest.mark.parametrize("route", BODIES, ids=name)
@pytest.mark.parametrize(
    "content",
    [b"[" * 50_000, b'{"a":' * 50_000, b"{} {}", b'{"user_id": "\xff"}'],
    ids=["lists", "objects", "two", "bytes"],
)
def test_wrong_in_two_ways(api, route, content):
    headers = {"content-type": "application/json"}
    answer = api.client.request(route.method, route.path, content=content, headers=headers)
    assert answer.status_code in (400, 422)


@pytest.mark.parametrize("route", BODIES, ids=name)
@pytest.mark.parametrize(
    "media", ["text/plain", "application/xml", "application/json; charset=latin-1", "", None, "💥"]
)
def test_content_types(api, route, media):
    content = json.dumps(GOOD[route.name]).encode()
    headers = {} if media is None else {"content-type": media.encode()}
    answer = api.client.request(route.method, route.path, content=content, headers=headers)
    problem(answer, 415, "unsupported_media_type")


@pytest.mark.parametrize("media", ["application/json", "Application/JSON; charset=UTF-8"])
def test_good_content_types(api, media):
    content = json.dumps(GOOD["recommend"]).encode()
    answer = api.client.post(
        "/v1/recommendations", content=content, headers={"content-type": media}
    )
    assert answer.status_code == 200


@pytest.mark.parametrize("route", WITH_ID, ids=name)
@pytest.mark.parametrize("identifier", ["", "%00", "a%00b", "x" * 257, "%FF", "%ED%A0%80"])
def test_bad_ids_in_the_path(api, route, identifier):
    answer = api.client.request(route.method, route.path.replace("{id}", identifier))
    problem(answer, 422, "invalid_field")


@pytest.mark.parametrize(
    "identifier", ["no such item", "'; drop table items", "🎬", "x" * 256, "a/b"]
)
@pytest.mark.parametrize(("method", "tail"), [("GET", "/similar"), ("DELETE", "")])
def test_unknown_items(api, method, tail, identifier):
    answer = api.client.request(method, f"/v1/items/{quote(identifier, safe='')}{tail}")
    problem(answer, 404, "unknown_item")


@pytest.mark.parametrize(
    "count", ["0", "-1", "501", "99999999999999999999", "ten", "1.5", "NaN", ""]
)
@pytest.mark.parametrize("path", ["/v1/users/1/recommendations", "/v1/items/1/similar"])
def test_counts(api, path, count):
    body = problem(api.client.get(path, params={"count": count}), 422, "invalid_field")
    assert body["pointer"] == "/count"


@pytest.mark.parametrize("path", ["/v1/users/1/recommendations", "/v1/items/1/similar"])
def test_unknown_parameters(api, path):
    body = problem(api.client.get(path, params={"cuont": "3"}), 422, "unknown_field")
    assert "did you mean 'count'" in body["detail"]


@pytest.mark.parametrize("route", ROUTES, ids=name)
def test_other_methods(api, route):
    path = route.path.replace("{id}", "1")
    allowed = {other.method for other in ROUTES if other.path == route.path}
    for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - allowed:
        answer = api.client.request(method, path)
        problem(answer, 405, "method_not_allowed")
        heads = {"HEAD"} if "GET" in allowed else set()
        assert answer.headers["allow"] == ", ".join(sorted(allowed | heads))


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/", "/v1/recommendations/", "/v2/recommendations", "/v1/users/1/x",
             "/v1/users", "/v1/items/1/", "/v1/users/a/b/recommendations", "/%00", "/é", "/docs/x"]
)  # fmt: skip
def test_unknown_paths(api, path):
    problem(api.client.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"event_id": ""}, "/event_id"),
        ({"event_id": None}, "/event_id"),
        ({"user_id": "x" * 10_000}, "/user_id"),
        ({"item_id": "a\0b"}, "/item_id"),
        ({"event_type": ""}, "/event_type"),
        ({"value": "5"}, "/value"),
        ({"occurred_at": "yesterday"}, "/occurred_at"),
        ({"occurred_at": "2026-01-01T00:00:00"}, "/occurred_at"),
        ({"occurred_at": 1767225600}, "/occurred_at"),
    ],
)
def test_one_bad_event(api, change, pointer):
    answer = api.client.post("/v1/events", json=GOOD["events"] | change)
    assert problem(answer, 422, "invalid_field")["pointer"] == pointer


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "1e39"])
def test_values_that_are_no_numbers(api, literal):
    content = (
        f'{{"event_id": "{uuid.uuid4()}", "user_id": "1", "item_id": "1", "value": {literal}}}'
    )
    answer = api.client.post(
        "/v1/events", content=content, headers={"content-type": "application/json"}
    )
    if literal == "1e39":  # a double, but no 32-bit float
        assert answer.json()["rejected"] == 1
    else:
        assert answer.status_code in (400, 422)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"item_id": "no such item"}, "unknown_item"),
        ({"occurred_at": "2999-01-01T00:00:00Z"}, "future_occurred_at"),
        ({"occurred_at": "0001-01-01T00:00:00Z"}, "invalid_occurred_at"),
    ],
)
def test_an_event_that_cannot_be_stored_is_rejected_by_name(api, change, code):
    event = GOOD["events"] | {"event_id": str(uuid.uuid4())} | change
    result = api.client.post("/v1/events", json=event).json()
    assert result["rejected"] == 1
    assert result["results"][0]["id"] == event["event_id"]
    assert result["results"][0]["code"] == code
    assert result["results"][0]["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"item_id": ""}, "/item_id"),
        ({"title": "x" * 1001}, "/title"),
        ({"title": 3}, "/title"),
        ({"categories": "Drama"}, "/categories"),
        ({"categories": [""]}, "/categories/0"),
        ({"available": "yes"}, "/available"),
        ({"attributes": {"a": [1]}}, "/attributes/..."),
        ({"attributes": {"a\0": 1}}, "/attributes"),
        ({"created_at": "soon"}, "/created_at"),
    ],
)
def test_one_bad_item(api, change, pointer):
    answer = api.client.put("/v1/items", json=GOOD["put_items"] | change)
    assert problem(answer, 422, "invalid_field")["pointer"] == pointer


def test_nothing_of_a_bad_call_was_stored(api):
    with connect(api.database_url) as connection:
        assert connection.execute(
            "select count(*) from items where item_id = 'bad-input'"
        ).fetchone() == (0,)
        assert connection.execute(
            "select count(*) from interactions where event_id = 'bad-input'"
        ).fetchone() == (0,)
