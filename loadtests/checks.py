"""What a load test keeps and checks; pure, so that it is tested without Locust's patches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from hdrh.histogram import HdrHistogram

MAIN = "recommendations"
"""The kind of request that latency thresholds are about."""

MICROSECONDS = (1, 600_000_000, 3)
"""Range and significant digits of every histogram: 1 microsecond to 10 minutes."""


class Recorder:
    """Latencies of clients and stages, and the kinds of error, for one run."""

    def __init__(self) -> None:
        self.client: dict[str, HdrHistogram] = {}
        self.stages: dict[str, HdrHistogram] = {}
        self.requests = 0
        self.errors: dict[str, int] = defaultdict(int)

    @staticmethod
    def add(into: dict[str, HdrHistogram], name: str, milliseconds: float) -> None:
        """Record one duration under `name`."""
        if name not in into:
            into[name] = HdrHistogram(*MICROSECONDS)
        into[name].record_value(max(1, round(milliseconds * 1000)))

    @staticmethod
    def summary(histograms: dict[str, HdrHistogram]) -> dict[str, dict[str, float]]:
        """Return count, p50, p95, p99 and max in milliseconds for each name."""
        return {
            name: {
                "count": histogram.get_total_count(),
                "p50": histogram.get_value_at_percentile(50) / 1000,
                "p95": histogram.get_value_at_percentile(95) / 1000,
                "p99": histogram.get_value_at_percentile(99) / 1000,
                "max": histogram.get_max_value() / 1000,
            }
            for name, histogram in histograms.items()
        }

    def error_rate(self) -> float:
        """Return the share of requests that failed; 1 when there were none at all."""
        return sum(self.errors.values()) / self.requests if self.requests else 1.0


def broken_thresholds(
    recorder: Recorder, max_error_rate: float, max_p95_ms: float, max_p99_ms: float
) -> list[str]:
    """Return a sentence for each limit that the run crossed; a latency limit of 0 is none."""
    broken = []
    if recorder.error_rate() > max_error_rate:
        broken.append(f"error rate {recorder.error_rate():.4f} is above {max_error_rate}")
    figures = recorder.summary(recorder.client).get(MAIN)
    for quantile, limit in (("p95", max_p95_ms), ("p99", max_p99_ms)):
        if limit and figures is None:
            broken.append(f"no {MAIN} succeeded, so {quantile} is unknown")
        elif limit and figures is not None and figures[quantile] > limit:
            broken.append(f"{quantile} of {MAIN} {figures[quantile]:.1f} ms is above {limit:g} ms")
    return broken


def fault(answer: Mapping[str, Any], count: int, forbidden: Collection[str]) -> str | None:
    """Return what is wrong with a list of recommendations, or None.

    A list shorter than asked is right only where the service says so: `returned` is its length
    and a note explains it.
    """
    ids = [item["id"] for item in answer["items"]]
    if answer["requested"] != count or answer["returned"] != len(ids):
        return "requested or returned does not match the list"
    if len(ids) < count and not answer["notes"]:
        return "short without a note"
    if len(set(ids)) < len(ids):
        return "an item came twice"
    if not set(ids).isdisjoint(forbidden):
        return "an item that the user has seen"
    return None


def similar_fault(answer: Mapping[str, Any], item_id: str) -> str | None:
    """Return what is wrong with a list of similar items, or None."""
    ids = [item["id"] for item in answer["items"]]
    if not ids:
        return "no similar item"
    if item_id in ids:
        return "the item is similar to itself"
    if len(set(ids)) < len(ids):
        return "a similar item came twice"
    return None
