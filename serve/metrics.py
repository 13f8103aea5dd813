"""Metrics of all replicas of a machine, at the one address that a scrape reaches.

A scrape through HAProxy arrives at any replica. So each replica writes its figures to a file
in a directory that all share, and the one that is asked adds up all files. Counters of a
replica that died stay in its file, so that sums never fall; gauges of dead ones are left out.

Counting is plain Python on purpose: a histogram of prometheus-client in its multi-process mode
writes mapped memory under a lock for each observation, and a request makes a dozen of them.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.0075),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
ROWS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)

# name: (labels, help, buckets of a histogram)
COUNTERS: dict[str, tuple[tuple[str, ...], str]] = {
    "shortlist_requests": (("route", "status"), "Answers by route and HTTP status."),
    "shortlist_requests_dropped": (
        ("reason",),
        "Requests given up before they cost: expired, cancelled, queue_full.",
    ),
    "shortlist_candidates": (
        ("step",),
        "Candidates: retrieved = filtered + ranked, and returned of the ranked.",
    ),
    "shortlist_candidates_dropped": (("reason",), "Candidates removed by each filter."),
    "shortlist_notes": (("code",), "Remarks on answers: cold_start, short, …"),
    "shortlist_rows": (("kind", "status"), "Rows of POST /v1/events and PUT /v1/items."),
    "shortlist_impressions": (("status",), "Shown items written, dropped or failed."),
    "shortlist_served_features": (
        ("status",),
        "Sampled answers whose features were written, dropped or failed.",
    ),
    "shortlist_features_expired": (
        ("group",),
        "Answers whose features were beyond their maximum age: defaults were used.",
    ),
    "shortlist_feature_refreshes": ((), "Refreshed item features taken into service."),
    "shortlist_release_swaps": (("outcome",), "Releases taken into service or refused."),
    "shortlist_catalogue_changes": ((), "Items changed live since the release."),
}
HISTOGRAMS: dict[str, tuple[tuple[str, ...], str, tuple[float, ...]]] = {
    "shortlist_request_seconds": (("route",), "Arrival to answer, in seconds.", SECONDS),
    "shortlist_stage_seconds": (("stage",), "Time of a request in each stage, seconds.", SECONDS),
    "shortlist_batch_requests": ((), "Requests in a batch.", SIZES),
    "shortlist_event_commit_rows": ((), "Events that one statement and commit stored.", ROWS),
}
GAUGES: dict[str, tuple[tuple[str, ...], str]] = {
    "shortlist_queued_requests": (("replica",), "Requests that wait for a batch."),
    "shortlist_queued_events": (("replica",), "Events that wait for a commit."),
    "shortlist_features_age_seconds": (
        ("replica", "group"),
        "Age of the feature groups that are not read with each request, in seconds.",
    ),
    "shortlist_resident_bytes": (("replica",), "Resident memory of a replica, in bytes."),
    "shortlist_release_info": (("replica", "release"), "1 for the release that a replica serves."),
}

Labels = tuple[str, ...]


class _Histogram(Struct):
    counts: list[int]
    total: float = 0.0


class _Snapshot(Struct):
    pid: int
    started: float
    counters: dict[str, list[tuple[Labels, float]]]
    histograms: dict[str, list[tuple[Labels, _Histogram]]]
    gauges: dict[str, list[tuple[Labels, float]]]


_DECODER = msgspec.json.Decoder(_Snapshot)


class Metrics:
    """The figures of one replica, and the sum over all.

    Parameters
    ----------
    directory : Path or None
        Shared by the replicas of a machine; None keeps the figures in this process.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._process = psutil.Process()
        self._counters: dict[str, dict[Labels, float]] = {name: {} for name in COUNTERS}
        self._histograms: dict[str, dict[Labels, _Histogram]] = {name: {} for name in HISTOGRAMS}
        self._gauges: dict[str, dict[Labels, float]] = {name: {} for name in GAUGES}
        self.replica = str(os.getpid())
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add `by` to a counter."""
        series = self._counters[name]
        series[labels] = series.get(labels, 0) + by

    def observe(self, name: str, value: float, *labels: str, times: int = 1) -> None:
        """Add a value to a histogram, `times` times."""
        series = self._histograms[name]
        histogram = series.get(labels)
        if histogram is None:
            histogram = series[labels] = _Histogram([0] * (len(HISTOGRAMS[name][2]) + 1))
        histogram.counts[bisect_left(HISTOGRAMS[name][2], value)] += times
        histogram.total += value * times

    def gauge(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge of this replica; with further labels it replaces the former ones."""
        self.gauges(name, {labels: value})

    def gauges(self, name: str, values: Mapping[Labels, float]) -> None:
        """Set all series of a gauge of this replica, by their further labels."""
        self._gauges[name] = {(self.replica, *key): value for key, value in values.items()}

    @property
    def _file(self) -> str:
        return f"{self.replica}-{self._process.create_time():.0f}.json"

    def flush(self) -> None:
        """Write this replica's figures to the shared directory."""
        if self._directory is None:
            return
        path = self._directory / self._file
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(self._snapshot()))
        temporary.replace(path)

    def exposition(self) -> bytes:
        """Return the sum over all replicas in the text format of Prometheus."""
        registry = CollectorRegistry()
        registry.register(_Sum(self._snapshots()))
        return generate_latest(registry)

    def _snapshot(self) -> _Snapshot:
        self.gauge("shortlist_resident_bytes", self._process.memory_info().rss)
        return _Snapshot(
            pid=self._process.pid,
            started=self._process.create_time(),
            counters={name: list(series.items()) for name, series in self._counters.items()},
            histograms={name: list(series.items()) for name, series in self._histograms.items()},
            gauges={name: list(series.items()) for name, series in self._gauges.items()},
        )

    def _snapshots(self) -> list[_Snapshot]:
        found = [self._snapshot()]
        if self._directory is not None:
            others = [path for path in self._directory.glob("*.json") if path.name != self._file]
            found += [_DECODER.decode(path.read_bytes()) for path in others]
        return found


class _Sum:
    """A collector of prometheus-client over snapshots."""

    def __init__(self, snapshots: list[_Snapshot]) -> None:
        self._snapshots = snapshots

    def collect(self) -> Iterator[Family]:
        """Yield one family for each name, series in a stable order."""
        for name, (labels, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            sums: dict[Labels, float] = {}
            for snapshot in self._snapshots:
                for key, value in snapshot.counters.get(name, []):
                    sums[key] = sums.get(key, 0) + value
            for key, value in sorted(sums.items()):
                counter.add_metric(key, value)
            yield counter
        for name, (labels, text, bounds) in HISTOGRAMS.items():
            yield self._histogram(name, labels, text, bounds)
        for name, (labels, text) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=labels)
            for snapshot in self._snapshots:
                if _alive(snapshot):
                    for key, value in snapshot.gauges.get(name, []):
                        gauge.add_metric(key, value)
            yield gauge

    def _histogram(
        self, name: str, labels: tuple[str, ...], text: str, bounds: tuple[float, ...]
    ) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text, labels=labels)
        merged: dict[Labels, _Histogram] = {}
        for snapshot in self._snapshots:
            for key, histogram in snapshot.histograms.get(name, []):
                into = merged.setdefault(key, _Histogram([0] * (len(bounds) + 1)))
                into.counts = [a + b for a, b in zip(into.counts, histogram.counts, strict=True)]
                into.total += histogram.total
        for key, histogram in sorted(merged.items(), key=lambda pair: pair[0]):
            running = 0
            buckets = []
            for bound, count in zip((*map(str, bounds), "+Inf"), histogram.counts, strict=True):
                running += count
                buckets.append((bound, running))
            family.add_metric(key, buckets, histogram.total)
        return family


def _alive(snapshot: _Snapshot) -> bool:
    try:
        return bool(abs(psutil.Process(snapshot.pid).create_time() - snapshot.started) < 1)
    except psutil.Error:
        return False
