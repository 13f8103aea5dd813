"""Metrics: sums over replicas, buckets, dead replicas, the text format."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serve.metrics import HISTOGRAMS, Metrics


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counts_and_buckets():
    metrics = Metrics()
    metrics.count("shortlist_requests", "recommend", "200")
    metrics.count("shortlist_requests", "recommend", "200", by=2)
    for seconds in (0.00005, 0.0001, 0.0007, 99.0):
        metrics.observe("shortlist_stage_seconds", seconds, "rank")
    found = samples(metrics.exposition())
    assert found["shortlist_requests_total", (("route", "recommend"), ("status", "200"))] == 3
    bucket = "shortlist_stage_seconds_bucket"
    assert found[bucket, (("le", "0.0001"), ("stage", "rank"))] == 2
    assert found[bucket, (("le", "0.00075"), ("stage", "rank"))] == 3
    assert found[bucket, (("le", "2.5"), ("stage", "rank"))] == 3
    assert found[bucket, (("le", "+Inf"), ("stage", "rank"))] == 4
    assert found["shortlist_stage_seconds_count", (("stage", "rank"),)] == 4
    assert found["shortlist_stage_seconds_sum", (("stage", "rank"),)] == pytest.approx(99.00085)


def test_a_scrape_adds_up_all_replicas(tmp_path):
    one, other = Metrics(tmp_path), Metrics(tmp_path)
    other.replica = "other"
    for metrics, number in ((one, 1), (other, 10)):
        metrics.count("shortlist_candidates", "ranked", by=number)
        metrics.observe("shortlist_batch_requests", number, times=number)
        metrics.gauge("shortlist_queued_requests", number)
    other.flush()
    found = samples(one.exposition())
    assert found["shortlist_candidates_total", (("step", "ranked"),)] == 11
    assert found["shortlist_batch_requests_count", ()] == 11
    assert found["shortlist_queued_requests", (("replica", "other"),)] == 10


def test_a_dead_replica_keeps_its_counters_and_loses_its_gauges(tmp_path):
    dead, alive = Metrics(tmp_path), Metrics(tmp_path)
    dead.replica = "dead"
    dead.count("shortlist_notes", "cold_start", by=5)
    dead.gauge("shortlist_queued_requests", 7)
    dead.flush()
    path = next(tmp_path.glob("dead-*"))
    snapshot = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode(snapshot | {"pid": 2**22 + 1}))
    found = samples(alive.exposition())
    assert found["shortlist_notes_total", (("code", "cold_start"),)] == 5
    assert ("shortlist_queued_requests", (("replica", "dead"),)) not in found


def test_a_release_gauge_replaces_the_former(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.gauge("shortlist_release_info", 1, "old")
    metrics.gauge("shortlist_release_info", 1, "new")
    names = [dict(labels).get("release") for (name, labels) in samples(metrics.exposition())
             if name == "shortlist_release_info"]  # fmt: skip
    assert names == ["new"]


def test_buckets_are_ascending():
    for _, _, bounds in HISTOGRAMS.values():
        assert list(bounds) == sorted(set(bounds))
