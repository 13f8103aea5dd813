"""OpenTelemetry spans for each stage, when an OTLP endpoint is configured.

The stages are timed anyway, so their spans are made from those times after the answer was
sent: a request pays nothing for being traced, and without an endpoint nothing is imported.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol


class Tracer(Protocol):
    """Records one finished request."""

    def record(
        self,
        route: str,
        started: float,
        timing_ms: Mapping[str, float],
        attributes: Mapping[str, str | int],
        traceparent: str | None,
    ) -> None:
        """Record a request that started at `started` (unix s) and its stages in order."""

    def close(self) -> None:
        """Send what waits to be sent."""


class OtlpTracer:
    """Sends spans to an OTLP/HTTP endpoint in the background.

    Parameters
    ----------
    endpoint : str
        URL of the collector, for example ``http://127.0.0.1:4318/v1/traces``.
    """

    def __init__(self, endpoint: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = TracerProvider(resource=Resource.create({"service.name": "shortlist"}))
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("shortlist")
        self._propagator = TraceContextTextMapPropagator()

    def record(
        self,
        route: str,
        started: float,
        timing_ms: Mapping[str, float],
        attributes: Mapping[str, str | int],
        traceparent: str | None,
    ) -> None:
        """Record a request that started at `started` (unix s) and its stages in order."""
        from opentelemetry import trace

        parent = self._propagator.extract({"traceparent": traceparent}) if traceparent else None
        begin = int(started * 1e9)
        root = self._tracer.start_span(
            route, parent, trace.SpanKind.SERVER, attributes=dict(attributes), start_time=begin
        )
        context = trace.set_span_in_context(root)
        moment = begin
        for stage, milliseconds in timing_ms.items():
            if stage != "total":
                span = self._tracer.start_span(stage, context, start_time=moment)
                moment += int(milliseconds * 1e6)
                span.end(moment)
        root.end(begin + int(timing_ms.get("total", (time.time() - started) * 1e3) * 1e6))

    def close(self) -> None:
        """Send what waits to be sent."""
        self._provider.shutdown()


def make_tracer(endpoint: str | None) -> Tracer | None:
    """Return a tracer for `endpoint`, or None for none."""
    return None if endpoint is None else OtlpTracer(endpoint)
