"""`shortlist bench serve`: how rounds are summed up, and one small run of all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.bench import CLIENTS, TOPOLOGIES, bodies, machine, summarise


def row(p50: float, qps: float) -> dict[str, float]:
    return {"p50_ms": p50, "p99_ms": 2 * p50, "qps": qps}


def test_ratios_are_taken_within_each_round() -> None:
    # The second round ran on a machine half as fast: ratios stay.
    raw = [row(1.0, 1000), row(2.0, 500), row(1.0, 1000)]
    servers = {
        "colocated": [
            {"1": row(1.5, 600), "8": row(4, 1500)},
            {"1": row(3.0, 300), "8": row(8, 750)},
            {"1": row(1.4, 700), "8": row(4, 1400)},
        ],
        "split": [{"1": row(4.0, 200)}, {"1": row(8.0, 100)}, {"1": row(4.0, 200)}],
    }
    found = summarise(raw, servers)
    assert found["raw_ms"] == 1.0
    assert found["raw_qps"] == 1000
    assert found["servers"]["colocated"]["1"]["p50_ms"] == 1.5
    assert found["servers"]["colocated"]["8"]["qps"] == 1400
    assert found["ratios"] == {"colocated_p50": 1.5, "colocated_qps": 1.5, "split_p50": 4.0}


def test_requests_and_machine_are_json() -> None:
    assert [json.loads(body)["user_id"] for body in bodies(["1", 'ü"'])] == ["1", 'ü"']
    about = json.loads(json.dumps(machine()))
    assert about["cores"] >= 1
    assert about["memory_gib"] > 0


def test_a_small_run(serving_url: str, serving_home: Path) -> None:
    command = [sys.executable, "-m", "serve.cli", "bench", "serve", "--json"]
    result = subprocess.run(
        [*command, "--rounds", "1", "--requests", "50"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "SHORTLIST_HOME": str(serving_home),
            "SHORTLIST_DATABASE_URL": serving_url,
        },
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert set(found["servers"]) == set(TOPOLOGIES)
    for by_clients in found["servers"].values():
        assert set(by_clients) == set(map(str, CLIENTS))
        for figures in by_clients.values():
            assert 0 < figures["p50_ms"] <= figures["p99_ms"]
            assert figures["qps"] > 0
            # The client must not be what is measured.
            assert figures["client_cpu_ms"] < 0.5 * figures["p50_ms"]
    assert found["raw_ms"] > 0
    assert found["ratios"]["colocated_p50"] == pytest.approx(
        found["servers"]["colocated"]["1"]["p50_ms"] / found["raw_ms"], rel=0.01
    )


def test_without_a_release_it_says_so(serving_url: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "serve.cli", "bench", "serve", "--rounds", "1"],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "SHORTLIST_HOME": str(tmp_path),
            "SHORTLIST_DATABASE_URL": serving_url,
        },
        timeout=120,
    )
    assert result.returncode == 1
    assert "shortlist demo --build-only" in result.stderr
