"""One method for each route: read, call the engine, make an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET

from features.errors import InputError, ShortlistError
from features.items import retire_item, upsert_items
from ranking.freshness import expired_text
from serve.asgi import (
    JSON,
    Disconnected,
    Header,
    Receive,
    Reply,
    Scope,
    check_id,
    decode_json,
    decode_query,
    read_json,
)
from serve.docs import page
from serve.engine import Engine
from serve.items import event_row, item_input, read_rows, results_of
from serve.openapi import FILE
from serve.problems import ProblemError
from serve.respond import Answer, items_out
from serve.routes import RecommendationQuery, SimilarQuery
from serve.schemas import (
    BulkResult,
    Check,
    Erased,
    Event,
    FeatureAge,
    Health,
    Item,
    RecommendationRequest,
    ReleaseOut,
    Releases,
    Retired,
    SimilarItems,
)

_LISTS = frozenset({"context_item_ids", "exclude_item_ids", "categories", "pins", "fields"})
_HTML: Header = (b"content-type", b"text/html; charset=utf-8")
_TEXT: Header = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


@dataclass(slots=True)
class Outcome:
    """An answer, and for recommendations what is counted after it was sent."""

    reply: Reply
    request: RecommendationRequest | None = None
    answer: Answer | None = None


class Endpoints:
    """The handlers, named as their routes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        config = engine.settings.serve
        self._read = partial(read_json, limit=config.max_body_bytes, seconds=config.body_timeout_s)
        self._request = msgspec.json.Decoder(RecommendationRequest)
        self._event = msgspec.json.Decoder(Event)
        self._item = msgspec.json.Decoder(Item)
        self._encoder = msgspec.json.Encoder()
        self._openapi = FILE.read_bytes()
        self._page = page().encode()

    async def recommend(self, scope: Scope, receive: Receive, _: str, arrived: float) -> Outcome:
        """POST /v1/recommendations."""
        body = await self._read(scope, receive)
        request = decode_json(body, self._request, RecommendationRequest.__struct_fields__)
        return await self._answer(request, receive, arrived)

    async def recommend_get(
        self, scope: Scope, receive: Receive, identifier: str, arrived: float
    ) -> Outcome:
        """GET /v1/users/{id}/recommendations."""
        query = decode_query(scope, RecommendationQuery, _LISTS)
        given = msgspec.structs.asdict(query).items()
        request = RecommendationRequest(
            check_id(identifier), **{name: value for name, value in given if value is not UNSET}
        )
        return await self._answer(request, receive, arrived)

    async def _answer(
        self, request: RecommendationRequest, receive: Receive, arrived: float
    ) -> Outcome:
        engine = self._engine
        if request.request_id is not None:
            kept = engine.kept(request)
            if kept is not None:
                return Outcome(Reply(200, kept.body), request, kept)
        waits = engine.batcher.busy
        future = engine.submit(request, arrived)
        # Only a request that has to wait can be given up before it costs.
        watcher = asyncio.create_task(_cancel_when_gone(receive, future)) if waits else None
        try:
            done = await engine.ranked(future)
        except asyncio.CancelledError:
            if future.cancelled():
                raise Disconnected from None
            raise
        finally:
            if watcher is not None:
                watcher.cancel()
        answer = engine.respond(request, done, arrived)
        timing = ", ".join(f"{stage};dur={ms:.3f}" for stage, ms in answer.timing_ms.items())
        headers = (JSON, (b"server-timing", timing.encode()))
        return Outcome(Reply(200, answer.body, headers), request, answer)

    async def similar(self, scope: Scope, _: Receive, identifier: str, arrived: float) -> Outcome:
        """GET /v1/items/{id}/similar."""
        query: Any = decode_query(scope, SimilarQuery, _LISTS)
        serving = self._engine.require_release()
        started = time.perf_counter()
        try:
            ranking = await self._engine.similar(serving, check_id(identifier), query.count)
        except InputError:
            raise _unknown_item(identifier) from None
        retrieved = time.perf_counter()
        items = items_out(
            ranking.items, serving.catalogue, None if query.fields is UNSET else query.fields
        )
        ended = time.perf_counter()
        timing = {
            "parse": (started - arrived) * 1e3,
            **ranking.timing_ms,
            "respond": (ended - retrieved) * 1e3,
            "total": (ended - arrived) * 1e3,
        }
        body = SimilarItems(
            item_id=identifier,
            release=ranking.release,
            requested=query.count,
            returned=len(items),
            timing_ms={stage: round(value, 4) for stage, value in timing.items()},
            items=items,
        )
        return self._json(body)

    async def events(self, scope: Scope, receive: Receive, _: str, __: float) -> Outcome:
        """POST /v1/events."""
        body = await self._read(scope, receive)
        rows, single = read_rows(body, self._event, Event)
        _raise_single(rows, single)
        good = [event_row(row) for row in rows if isinstance(row, Event)]
        stored = await self._engine.store_events(good) if good else []
        result = results_of(rows, single, lambda row: row.event_id, stored)
        return self._bulk("event", result)

    async def put_items(self, scope: Scope, receive: Receive, _: str, __: float) -> Outcome:
        """PUT /v1/items."""
        body = await self._read(scope, receive)
        rows, single = read_rows(body, self._item, Item)
        _raise_single(rows, single)
        good = [item_input(row) for row in rows if isinstance(row, Item)]
        engine = self._engine
        stored = await engine.in_time(upsert_items(engine.pool, good)) if good else []
        result = results_of(rows, single, lambda row: row.item_id, stored)
        return self._bulk("item", result)

    async def delete_item(self, _: Scope, __: Receive, identifier: str, ___: float) -> Outcome:
        """DELETE /v1/items/{id}."""
        engine = self._engine
        if await engine.in_time(retire_item(engine.pool, check_id(identifier))) is None:
            raise _unknown_item(identifier)
        return self._json(Retired(identifier, "retired"))

    async def delete_user(self, _: Scope, __: Receive, identifier: str, ___: float) -> Outcome:
        """DELETE /v1/users/{id}."""
        rows = await self._engine.erase(check_id(identifier))
        return self._json(Erased(identifier, "erased", rows))

    async def releases(self, _: Scope, __: Receive, ___: str, ____: float) -> Outcome:
        """GET /v1/releases."""
        holder = self._engine.holder
        serving = None if holder.serving is None else holder.serving.id
        current, known = await asyncio.to_thread(holder.on_disk)
        rows = []
        for release_id in known:
            row = ReleaseOut(release_id, release_id == serving, release_id == current)
            if release_id in holder.refused:
                row.refused = holder.refused[release_id]
            rows.append(row)
        return self._json(Releases(serving, rows))

    async def healthz(self, _: Scope, __: Receive, ___: str, ____: float) -> Outcome:
        """GET /healthz."""
        return self._json(Health("ok", []))

    async def readyz(self, _: Scope, __: Receive, ___: str, ____: float) -> Outcome:
        """GET /readyz."""
        checks = [await self._check_database(), self._engine.holder.check()]
        ready = all(check.passed for check in checks)
        health = Health("ok" if ready else "not_ready", checks)
        serving = self._engine.holder.serving
        if serving is not None:
            health.features = serving.feature_ages()
            health.checks.append(_check_features(health.features))
        outcome = self._json(health)
        if not ready:
            outcome.reply.status = 503
            outcome.reply.headers = (JSON, (b"retry-after", b"1"))
        return outcome

    async def metrics(self, _: Scope, __: Receive, ___: str, ____: float) -> Outcome:
        """GET /metrics."""
        return Outcome(Reply(200, self._engine.metrics.exposition(), (_TEXT,)))

    async def openapi(self, _: Scope, __: Receive, ___: str, ____: float) -> Outcome:
        """GET /openapi.json."""
        return Outcome(Reply(200, self._openapi))

    async def docs(self, _: Scope, __: Receive, ___: str, ____: float) -> Outcome:
        """GET /docs."""
        return Outcome(Reply(200, self._page, (_HTML,)))

    async def _check_database(self) -> Check:
        try:
            await self._engine.ping()
        except ShortlistError as error:
            return Check("database", False, str(error))
        return Check("database", True, "reachable")

    def _json(self, body: msgspec.Struct) -> Outcome:
        return Outcome(Reply(200, self._encoder.encode(body)))

    def _bulk(self, kind: str, result: BulkResult) -> Outcome:
        for status in ("accepted", "duplicate", "rejected"):
            if number := getattr(result, status):
                self._engine.metrics.count("shortlist_rows", kind, status, by=number)
        return self._json(result)


def _check_features(ages: list[FeatureAge]) -> Check:
    """Say which groups are too old; they take their defaults, so the service can answer."""
    problems = [
        expired_text(age.group, age.age_s, age.max_age_s)
        for age in ages
        if age.expired and age.age_s is not None
    ]
    return Check("features", True, "; ".join(problems) or "no group is beyond its maximum age")


def _raise_single(rows: Sequence[object], single: bool) -> None:
    """Raise what is wrong with a body that is one row: there is no good row to keep."""
    if single and isinstance(rows[0], ProblemError):
        raise rows[0]


def _unknown_item(identifier: str) -> ProblemError:
    return ProblemError(404, "unknown_item", f"no item has the id {identifier!r}", pointer="/id")


async def _cancel_when_gone(receive: Receive, future: asyncio.Future[Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    future.cancel()
