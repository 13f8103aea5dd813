"""The demo on a release that is there already; .ci/run runs all of it from nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from fixtures_database import Server
from tiny_runs import make_run

from features.database import connect
from ranking.release import ReleaseConfig, build_release, current_release
from serve.cli.build import usable_release

KEYS = {
    "users",
    "items",
    "interactions",
    "coarse_recall_at_200",
    "ann_recall_at_200",
    "ndcg_at_10",
    "hr_at_10",
    "timing_ms",
    "total_ms",
    "seconds",
}


@pytest.fixture(scope="module")
def world(
    database_server: Server, sample_template: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The environment of a demo whose database and release exist."""
    url = database_server.create("demo", sample_template)
    home = tmp_path_factory.mktemp("demo")
    with connect(url) as connection:
        run = make_run(connection, home / "models" / "tiny")
        record = run / "training.json"
        record.write_text(json.dumps({**json.loads(record.read_text()), "holdout": "last"}))
        build_release(connection, run, home, ReleaseConfig(min_recall=0.5))
    return {
        **os.environ,
        "SHORTLIST_HOME": str(home),
        "SHORTLIST_DATABASE_URL": url,
        "COLUMNS": "80",
    }


def family(environment: dict[str, str]) -> list[str]:
    """Return the processes that were started with this home, except those of the tests."""
    found = []
    for process in psutil.process_iter(["pid", "name", "environ"]):
        variables = process.info["environ"] or {}
        if variables.get("SHORTLIST_HOME") == environment["SHORTLIST_HOME"]:
            found.append(f"{process.info['pid']} {process.info['name']}")
    return found


def demo(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "serve.cli", "demo", *arguments]


def test_json_is_the_last_line(world: dict[str, str]) -> None:
    result = subprocess.run(demo("--json"), env=world, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    *shown, last = result.stdout.splitlines()
    found = json.loads(last)
    assert found.keys() >= KEYS
    assert (found["users"], found["items"], found["interactions"]) == (671, 9066, 100004)
    assert {"popularity", "coarse", "fine", "item_to_item"} <= set(found["ndcg_at_10"])
    assert set(found["ndcg_at_10"]) == set(found["hr_at_10"])
    assert all(set(row) == {"p50", "p99"} for row in found["timing_ms"].values())
    assert {"user_state", "retrieve", "features", "rank", "rerank"} <= set(found["timing_ms"])
    assert found["total_ms"]["p50"] > 0
    assert found["seconds"]["total"] >= found["seconds"]["first_titles"] > 0
    text = "\n".join(shown)
    assert max(map(len, (line for line in shown if not line.startswith("report")))) <= 80
    assert text.count("liked") == text.count("Recommended to user") == 3
    explained = re.search(r"stages explain (\d+\.\d)%", text)
    assert explained is not None
    assert float(explained.group(1)) == pytest.approx(100, abs=5)
    assert "\x1b" not in result.stdout + result.stderr
    assert Path(re.findall(r"report: (.*)", text)[0]).exists()
    assert family(world) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_process(world: dict[str, str], number: signal.Signals) -> None:
    with subprocess.Popen(
        demo(),
        env=world,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C reaches the whole group, as in a terminal.
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("curl "))
        url = re.findall(r"'(.*)'", line)[0]
        with urllib.request.urlopen(url, timeout=10) as response:
            assert len(json.loads(response.read())["items"]) == 5
        assert len(family(world)) > 3
        os.killpg(process.pid, number)
        time.sleep(0.2)
        if process.poll() is None:  # an impatient second one changes nothing
            process.send_signal(number)
        process.wait(60)
    assert process.returncode == 0
    assert family(world) == []


def test_a_taken_port(world: dict[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            demo("--exit", "--port", port), env=world, capture_output=True, text=True, timeout=60
        )
    assert result.returncode == 1
    assert f"--port {port} is taken" in result.stderr
    assert family(world) == []


def test_a_damaged_release_is_made_anew(world: dict[str, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(world["SHORTLIST_HOME"], home, symlinks=True)
    assert usable_release(home) == current_release(home)
    damaged = home / "releases" / "current" / "ranker.onnx"
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    assert usable_release(home) is None
    assert usable_release(tmp_path) is None
