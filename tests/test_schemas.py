"""Decoding of requests: limits, unknown fields, problems with code and pointer."""

from __future__ import annotations

import msgspec
import pytest

from serve.asgi import decode_json, decode_query
from serve.items import read_rows, results_of
from serve.problems import ProblemError, nearest
from serve.routes import RecommendationQuery
from serve.schemas import MAX_COUNT, Event, Item, RecommendationRequest

REQUEST = msgspec.json.Decoder(RecommendationRequest)
FIELDS = RecommendationRequest.__struct_fields__
LISTS = frozenset({"exclude_item_ids", "fields", "categories"})


def read(body: bytes | str) -> RecommendationRequest:
    return decode_json(body if isinstance(body, bytes) else body.encode(), REQUEST, FIELDS)


def test_two_fields_suffice():
    request = read('{"user_id": "u1"}')
    assert request.count == 20
    assert request.exclude_seen
    assert request.history is None


def test_everything():
    request = read(
        '{"user_id": "u1", "count": 3, "scenario": "home", "context_item_ids": ["a"],'
        '"history": [{"item_id": "b", "value": 4.5, "occurred_at": "2026-01-01T00:00:00Z"}],'
        '"exclude_item_ids": ["c"], "exclude_seen": false, "categories": ["Drama"],'
        '"diversity": 0.5, "category_cap": 2, "pins": ["d"], "fields": ["title"],'
        '"deadline_ms": 80, "request_id": "r"}'
    )
    assert request.history[0].value == 4.5
    assert request.history[0].occurred_at.timestamp() == 1767225600


@pytest.mark.parametrize(
    ("body", "status", "code", "pointer"),
    [
        ("", 400, "invalid_json", None),
        ("{", 400, "invalid_json", None),
        ("nonsense", 400, "invalid_json", None),
        (b"\xff\xfe", 400, "invalid_json", None),
        (b'{"user_id": "\xff"}', 400, "invalid_json", None),
        (b"\xef\xbb\xbf{}", 400, "invalid_json", None),
        ('{"user_id": "\\ud800"}', 400, "invalid_json", None),
        ('{"user_id": "u", "diversity": NaN}', 400, "invalid_json", None),
        ("[" * 100_000, 422, "invalid_field", ""),
        ('{"user_id":' + "[" * 100_000, 422, "invalid_field", "/user_id"),
        ("null", 422, "invalid_field", ""),
        ("[]", 422, "invalid_field", ""),
        ("{}", 422, "missing_field", "/user_id"),
        ('{"user_id": 1}', 422, "invalid_field", "/user_id"),
        ('{"user_id": ""}', 422, "invalid_field", "/user_id"),
        ('{"user_id": null}', 422, "invalid_field", "/user_id"),
        ('{"user_id": "a\\u0000"}', 422, "invalid_field", "/user_id"),
        ('{"user_id": "' + "x" * 257 + '"}', 422, "invalid_field", "/user_id"),
        ('{"user_id": "u", "count": 0}', 422, "invalid_field", "/count"),
        ('{"user_id": "u", "count": -1}', 422, "invalid_field", "/count"),
        ('{"user_id": "u", "count": 501}', 422, "invalid_field", "/count"),
        ('{"user_id": "u", "count": 1e30}', 422, "invalid_field", "/count"),
        ('{"user_id": "u", "count": 99999999999999999999999}', 422, "invalid_field", "/count"),
        ('{"user_id": "u", "count": "ten"}', 422, "invalid_field", "/count"),
        ('{"user_id": "u", "count": 2.5}', 422, "invalid_field", "/count"),
        ('{"user_id": "u", "diversity": 1.01}', 422, "invalid_field", "/diversity"),
        ('{"user_id": "u", "deadline_ms": 0}', 422, "invalid_field", "/deadline_ms"),
        ('{"user_id": "u", "cuont": 3}', 422, "unknown_field", "/cuont"),
        ('{"user_id": "u", "boosts": []}', 422, "unknown_field", "/boosts"),
        ('{"user_id": "u", "filter": "x"}', 422, "unknown_field", "/filter"),
        ('{"user_id": "u", "history": [{"item_id": "i"}, {"value": 1}]}', 422, "missing_field",
         "/history/1/item_id"),
        ('{"user_id": "u", "history": [{"item_id": "i", "value": 1e999}]}', 422, "invalid_field",
         "/history/0/value"),
        ('{"user_id": "u", "history": [{"item_id": "i", "occurred_at": "2026-01-01T00:00:00"}]}',
         422, "invalid_field", "/history/0/occurred_at"),
        ('{"user_id": "u", "exclude_item_ids": ["a", ""]}', 422, "invalid_field",
         "/exclude_item_ids/1"),
        ('{"user_id": "u", "exclude_item_ids": [' + ",".join(['"a"'] * 1001) + "]}", 422,
         "invalid_field", "/exclude_item_ids"),
    ],
)  # fmt: skip
def test_bad_bodies(body, status, code, pointer):
    with pytest.raises(ProblemError) as caught:
        read(body)
    error = caught.value
    assert (error.status, error.code) == (status, code)
    if pointer is not None:
        assert error.pointer == pointer


def test_the_detail_names_value_and_expectation():
    with pytest.raises(ProblemError) as caught:
        read('{"user_id": "u", "count": 501}')
    assert caught.value.detail == f"expected `int` <= {MAX_COUNT}, got 501"
    with pytest.raises(ProblemError, match="did you mean 'count'"):
        read('{"user_id": "u", "cuont": 3}')


@pytest.mark.parametrize(
    "text", ["'", '"; drop table items; --', "🎬", "日本", "a b", "%00", "../x"]
)
def test_ids_are_any_text(text):
    assert read(msgspec.json.encode({"user_id": text})).user_id == text


def scope(query: str) -> dict:
    return {"query_string": query.encode()}


def test_query_parameters():
    found = decode_query(
        scope("count=5&exclude_seen=false&exclude_item_ids=a%26b&exclude_item_ids=c&fields="),
        RecommendationQuery,
        LISTS,
    )
    assert found.count == 5
    assert found.exclude_seen is False
    assert found.exclude_item_ids == ["a&b", "c"]
    assert found.fields == [""]


@pytest.mark.parametrize(
    ("query", "code", "pointer"),
    [
        ("count=0", "invalid_field", "/count"),
        ("count=", "invalid_field", "/count"),
        ("pins=", "invalid_field", "/pins"),
        ("context_item_ids=&count=1", "invalid_field", "/context_item_ids"),
        ("count=1&count=2", "invalid_field", "/count"),
        ("count=%31%30%30%30", "invalid_field", "/count"),
        ("diversity=nan", "invalid_field", "/diversity"),
        ("diversity=inf", "invalid_field", "/diversity"),
        ("cuont=1", "unknown_field", "/cuont"),
        ("user_id=x", "unknown_field", "/user_id"),
        ("scenario=%ff", "invalid_field", ""),
        ("scenario=%00", "invalid_field", "/scenario"),
        ("&".join(f"exclude_item_ids={n}" for n in range(5000)), "invalid_field", ""),
    ],
)
def test_bad_query_parameters(query, code, pointer):
    with pytest.raises(ProblemError) as caught:
        decode_query(scope(query), RecommendationQuery, LISTS)
    assert (caught.value.status, caught.value.code, caught.value.pointer) == (422, code, pointer)


def test_nearest():
    assert nearest("cuont", ["count", "fields"]) == "count"
    assert nearest("xyzzy", ["count", "fields"]) is None


EVENT = msgspec.json.Decoder(Event)


def test_rows_are_judged_alone():
    body = (
        b'[{"event_id":"e1","user_id":"u","item_id":"i"}, {"event_id":"e2"}, 7,'
        b'{"event_id":"e3","user_id":"u","item_id":"i","value":1e999}]'
    )
    rows, single = read_rows(body, EVENT, Event)
    assert not single
    assert isinstance(rows[0], Event)
    assert [row.code for row in rows[1:]] == ["missing_field", "invalid_field", "invalid_field"]


class Outcome:
    def __init__(self, status: str, reason: str | None = None) -> None:
        self.status = status
        self.reason = reason


def test_results_keep_the_order_and_count():
    body = (
        b'[{"event_id":"a","user_id":"u","item_id":"i"}, {"event_id":"b"},'
        b'{"event_id":"c","user_id":"u","item_id":"x"},'
        b'{"event_id":"d","user_id":"u","item_id":"i"}]'
    )
    rows, single = read_rows(body, EVENT, Event)
    result = results_of(
        rows,
        single,
        lambda row: row.event_id,
        [
            Outcome("accepted"),
            Outcome("rejected", "unknown_item: no item 'x'"),
            Outcome("duplicate"),
        ],
    )
    assert (result.accepted, result.duplicate, result.rejected) == (1, 1, 2)
    assert [row.status for row in result.results] == [
        "accepted", "rejected", "rejected", "duplicate",
    ]  # fmt: skip
    assert result.results[1].pointer == "/1/user_id"
    assert (result.results[2].id, result.results[2].code) == ("c", "unknown_item")


@pytest.mark.parametrize("body", [b"[]", b"[" + b",".join([b"{}"] * 1001) + b"]"])
def test_number_of_rows(body):
    with pytest.raises(ProblemError, match="send 1 to 1000 at once"):
        read_rows(body, EVENT, Event)


def test_items():
    rows, single = read_rows(
        b'{"item_id": "i", "attributes": {"year": 2020, "price": 9.5, "new": true, "x": null}}',
        msgspec.json.Decoder(Item),
        Item,
    )
    assert single
    assert rows[0].attributes == {"year": 2020, "price": 9.5, "new": True, "x": None}
