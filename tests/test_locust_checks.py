"""The checks of the load test: which answers are wrong, and which runs failed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.checks import Recorder, broken_thresholds, fault, similar_fault


def answer(ids: list[str], requested: int, notes: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "requested": requested,
        "returned": len(ids),
        "items": [{"id": item} for item in ids],
        "notes": [{"code": "short"}] * notes,
        **more,
    }


@pytest.mark.parametrize(
    ("given_answer", "wrong"),
    [
        (answer(["a", "b"], 2), None),
        (answer(["a"], 2, notes=1), None),
        (answer([], 2, notes=1), None),
        (answer(["a"], 2), "short without a note"),
        (answer(["a", "a"], 2), "an item came twice"),
        (answer(["a", "seen"], 2), "an item that the user has seen"),
        (answer(["a", "b"], 3, notes=1), "requested or returned does not match the list"),
        (answer(["a", "b"], 2, returned=1), "requested or returned does not match the list"),
    ],
)
def test_fault(given_answer: dict[str, Any], wrong: str | None) -> None:
    assert fault(given_answer, 2, {"seen"}) == wrong


@given(st.lists(st.text(max_size=3), max_size=8), st.sets(st.text(max_size=3)))
def test_an_answer_is_right_iff_it_has_distinct_unseen_items(
    ids: list[str], seen: set[str]
) -> None:
    right = len(set(ids)) == len(ids) and not seen & set(ids)
    assert (fault(answer(ids, len(ids)), len(ids), seen) is None) == right


@pytest.mark.parametrize(
    ("ids", "right"), [(["a", "b"], True), ([], False), (["x"], False), (["a", "a"], False)]
)
def test_similar(ids: list[str], right: bool) -> None:
    assert (similar_fault(answer(ids, 10), "x") is None) == right


def recorded(latencies_ms: list[float], errors: int = 0) -> Recorder:
    recorder = Recorder()
    for latency in latencies_ms:
        recorder.add(recorder.client, "recommendations", latency)
    recorder.requests = len(latencies_ms) + errors
    recorder.errors["recommendations: status 500"] = errors
    return recorder


def test_percentiles_keep_three_digits() -> None:
    figures = Recorder.summary(recorded([n / 10 for n in range(1, 1001)]).client)
    row = figures["recommendations"]
    assert row["count"] == 1000
    assert row["p50"] == pytest.approx(50.0, rel=2e-3)
    assert row["p99"] == pytest.approx(99.0, rel=2e-3)
    assert row["max"] == pytest.approx(100.0, rel=2e-3)


def test_thresholds() -> None:
    good = recorded([10.0] * 99 + [80.0])
    assert broken_thresholds(good, 0, 20, 90) == []
    assert broken_thresholds(good, 0, 0, 0) == []
    (slow,) = broken_thresholds(recorded([10.0] * 90 + [80.0] * 10), 0, 20, 0)
    assert slow.startswith("p95 of recommendations 80.")
    (failed,) = broken_thresholds(recorded([10.0] * 99, errors=1), 0.005, 20, 20)
    assert failed == "error rate 0.0100 is above 0.005"
    assert broken_thresholds(recorded([10.0] * 99, errors=1), 0.01, 20, 20) == []


def test_a_run_without_requests_failed() -> None:
    assert broken_thresholds(Recorder(), 0.5, 0, 100) == [
        "error rate 1.0000 is above 0.5",
        "no recommendations succeeded, so p99 is unknown",
    ]
