"""The ASGI application: HTTP in front of an :class:`~serve.engine.Engine`.

Run it under Ray Serve (`serve.deployment.start`), or under any ASGI server::

    uvicorn --factory serve.app:create_app
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from features.errors import DatabaseUnavailable
from serve import logs
from serve.asgi import (
    Disconnected,
    Receive,
    Reply,
    Scope,
    Send,
    path_segments,
    problem_reply,
    send_reply,
)
from serve.config import Settings, load_settings
from serve.endpoints import Endpoints, Outcome
from serve.engine import Engine
from serve.problems import ProblemError, nearest
from serve.routes import ROUTES
from serve.tracing import Tracer, make_tracer

_LOGGER = logging.getLogger(logs.NAME)

Handler = Callable[[Scope, Receive, str, float], Awaitable[Outcome]]


class App:
    """Dispatches requests, and turns every error into a problem document.

    Parameters
    ----------
    engine : Engine
        Entered and left by the lifespan of the application.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._tracer: Tracer | None = make_tracer(engine.settings.serve.otlp_endpoint)
        self._access_log = engine.settings.serve.access_log
        endpoints = Endpoints(engine)
        self._static: dict[str, dict[str, tuple[str, Handler]]] = {}
        self._dynamic: dict[tuple[str, str, str], dict[str, tuple[str, Handler]]] = {}
        for route in ROUTES:
            handler: Handler = getattr(endpoints, route.name)
            named = {route.method: (route.name, handler)}
            if "{id}" in route.path:
                first, kind, _, *rest = route.segments
                key = (first, kind, rest[0] if rest else "")
                self._dynamic.setdefault(key, {}).update(named)
            else:
                self._static.setdefault(route.path, {}).update(named)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of ASGI."""
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._lifespan(receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.perf_counter()
        name = "unknown"
        outcome: Outcome | None = None
        try:
            name, handler, identifier = self._find(scope)
            outcome = await handler(scope, receive, identifier, arrived)
            reply = outcome.reply
        except Disconnected:
            self.engine.metrics.count("shortlist_requests", name, "499")
            return
        except ProblemError as error:
            reply = problem_reply(error)
        except DatabaseUnavailable as error:
            _LOGGER.warning("%s: %s", name, error, extra={"route": name})
            reply = problem_reply(
                ProblemError(503, "database_unavailable", str(error), retry_after_s=1)
            )
        except Exception:
            _LOGGER.exception("%s failed", name, extra={"route": name})
            reply = problem_reply(
                ProblemError(500, "internal_error", "this is a fault of the service; see its log")
            )
        await send_reply(send, reply)
        self._account(scope, name, reply, outcome, arrived)

    def _find(self, scope: Scope) -> tuple[str, Handler, str]:
        """Return route name, handler and the id in the path.

        Raises
        ------
        ProblemError
            404 for an unknown path, 405 for another method.
        """
        path: str = scope["path"]
        methods = self._static.get(path)
        identifier = ""
        if methods is None and path.startswith("/v1/"):
            segments = path_segments(scope)
            if 3 <= len(segments) <= 4:
                identifier = segments[2]
                tail = segments[3] if len(segments) == 4 else ""
                methods = self._dynamic.get((segments[0], segments[1], tail))
                # A final slash is another path.
                if len(segments) == 4 and not tail:
                    methods = None
        if methods is None:
            hint = nearest(path, (route.path for route in ROUTES))
            meant = f"; did you mean {hint}?" if hint else "; see /docs"
            raise ProblemError(404, "not_found", f"no endpoint has the path {path[:200]!r}{meant}")
        # The HTTP server drops the body of the answer to a HEAD.
        found = methods.get("GET" if scope["method"] == "HEAD" else scope["method"])
        if found is None:
            allowed = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ())}))
            raise ProblemError(
                405,
                "method_not_allowed",
                f"{path[:200]!r} answers {allowed}, not {scope['method'][:20]}",
                allow=allowed,
            )
        return *found, identifier

    def _account(
        self, scope: Scope, name: str, reply: Reply, outcome: Outcome | None, arrived: float
    ) -> None:
        """Count, trace and log an answer that was sent."""
        seconds = time.perf_counter() - arrived
        metrics = self.engine.metrics
        metrics.count("shortlist_requests", name, str(reply.status))
        metrics.observe("shortlist_request_seconds", seconds, name)
        answer = None
        if outcome is not None and outcome.request is not None and outcome.answer is not None:
            answer = outcome.answer
            self.engine.account(outcome.request, answer)
        if self._tracer is not None:
            self._trace(self._tracer, scope, name, reply, outcome, seconds)
        if self._access_log:
            _LOGGER.info(
                "%s %d",
                name,
                reply.status,
                extra={
                    "route": name,
                    "status": reply.status,
                    "ms": round(seconds * 1e3, 3),
                    "rec_id": answer.rec_id if answer else None,
                    "release": answer.done.ranking.release if answer and answer.done else None,
                    "request_id": outcome.request.request_id
                    if outcome and outcome.request
                    else None,
                },
            )

    def _trace(
        self,
        tracer: Tracer,
        scope: Scope,
        name: str,
        reply: Reply,
        outcome: Outcome | None,
        seconds: float,
    ) -> None:
        parent = dict(scope["headers"]).get(b"traceparent")
        attributes: dict[str, str | int] = {"http.response.status_code": reply.status}
        timing: dict[str, float] = {"total": seconds * 1e3}
        if outcome is not None and outcome.answer is not None and outcome.answer.done is not None:
            timing = outcome.answer.timing_ms
            attributes["shortlist.rec_id"] = outcome.answer.rec_id
            attributes["shortlist.release"] = outcome.answer.done.ranking.release
        tracer.record(
            name,
            time.time() - seconds,
            timing,
            attributes,
            parent.decode("latin-1") if parent else None,
        )

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        entered = False
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.engine.__aenter__()
                    entered = True
                except Exception as error:
                    _LOGGER.exception("the service cannot start")
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                if entered:
                    await self.engine.__aexit__()
                if self._tracer is not None:
                    await asyncio.to_thread(self._tracer.close)
                await send({"type": "lifespan.shutdown.complete"})
                return


def create_app(settings: Settings | None = None, directory: Path | None = None) -> App:
    """Return the application with all stages in this process.

    Parameters
    ----------
    settings : Settings, optional
        None reads file and environment.
    directory : Path, optional
        Shared by the replicas of a machine; None makes a new one.
    """
    settings = settings or load_settings()
    logs.setup(settings.serve.log_level)
    if directory is None:
        directory = Path(tempfile.mkdtemp(prefix="shortlist-"))
    return App(Engine(settings, directory))
