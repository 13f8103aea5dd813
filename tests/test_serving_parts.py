"""Parts of the service alone: kept answers, impressions, proxy configuration, remote ranker."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import runpy
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from worlds import make_table

from features.errors import ConfigError, DatabaseUnavailable
from ranking.catalogue import LiveCatalogue
from ranking.types import RankedItem, SourceHit
from serve import logs
from serve.answers import AnswerStore
from serve.deployment import RunningService, ServiceEnded
from serve.haproxy import mend
from serve.impressions import ImpressionWriter, Shown
from serve.metrics import Metrics
from serve.ray_environment import Instance
from serve.remote import RemoteRankers, join, part
from serve.tracing import make_tracer


def test_the_first_answer_counts(tmp_path):
    one, other = AnswerStore(tmp_path, 60, 10), AnswerStore(tmp_path, 60, 10)
    assert one.get("u", "r") is None
    assert one.put("u", "r", b"first", 0.0) == b"first"
    assert other.put("u", "r", b"second", 0.0) == b"first"
    assert other.get("u", "r") == b"first"
    assert other.get("u", "s") is None
    assert other.get("v", "r") is None
    assert len(list(tmp_path.iterdir())) == 1


def test_answers_grow_old(tmp_path):
    store = AnswerStore(tmp_path, 60, 10)
    store.put("u", "r", b"old", 0.0)
    path = next(tmp_path.iterdir())
    os.utime(path, (time.time() - 61, time.time() - 61))
    assert store.get("u", "r") is None
    assert store.put("u", "r", b"new", 0.0) == b"new"
    assert store.get("u", "r") == b"new"
    os.utime(path, (time.time() - 61, time.time() - 61))
    assert store.sweep() == 1
    assert list(tmp_path.iterdir()) == []


def test_answers_are_bounded(tmp_path):
    store = AnswerStore(tmp_path, 60, 3)
    for number in range(5):
        store.put("u", str(number), b"", 0.0)
        path = store._path("u", str(number))
        os.utime(path, (time.time() - 10 + number, time.time() - 10 + number))
    assert store.sweep() == 2
    assert [store.get("u", str(number)) for number in range(5)] == [None, None, b"", b"", b""]
    assert AnswerStore(tmp_path, 60, 0).put("u", "9", b"x", 0.0) == b"x"
    assert store.get("u", "9") is None


def test_a_forgotten_user_has_no_answers_and_keeps_none_from_before(tmp_path):
    store, other = AnswerStore(tmp_path, 60, 10), AnswerStore(tmp_path, 60, 10)
    before = time.time() - 1
    store.put("u", "r", b"1", before)
    store.put("u", "s", b"2", before)
    store.put("v", "r", b"3", before)
    other.forget("u")
    assert [store.get("u", "r"), store.get("u", "s"), store.get("v", "r")] == [None, None, b"3"]
    # It was computed before, and arrives after.
    assert store.put("u", "r", b"late", before) == b"late"
    assert other.get("u", "r") is None
    assert store.put("u", "r", b"new", time.time() + 1) == b"new"
    assert other.get("u", "r") == b"new"
    (mark,) = tmp_path.glob("*.forgotten")
    os.utime(mark, (time.time() - 61, time.time() - 61))
    assert store.sweep() == 1
    assert len(list(tmp_path.iterdir())) == 2
    AnswerStore(tmp_path, 60, 0).forget("v")
    assert store.get("v", "r") == b"3"


def test_a_service_that_ends_by_itself_is_said(tmp_path):
    log = tmp_path / "service.log"
    log.write_text("out of memory")
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    service = RunningService("http://x", process.pid, log, Instance(tmp_path / "i"), process)
    with pytest.raises(ServiceEnded, match=r"exit status 3; start it again.*\nout of memory"):
        service.wait()


def shown(items: int, user_id: str = "u") -> Shown:
    catalogue = LiveCatalogue(make_table(20))
    ranked = [
        RankedItem(row, catalogue.id(row), float(row), (SourceHit("ann", 0, 1.0),))
        for row in range(items)
    ]
    return Shown("0193", user_id, "r", None, ranked, catalogue, 1.0)


class Database:
    def __init__(self) -> None:
        self.rows: list = []
        self.away = False

    async def write(self, rows) -> int:
        if self.away:
            raise DatabaseUnavailable("away")
        self.rows += rows
        return len(rows)


def test_impressions_are_bounded_and_survive_errors():
    async def scenario() -> None:
        database, metrics = Database(), Metrics()
        writer = ImpressionWriter(database.write, metrics, capacity=10)
        writer.add(shown(4))
        writer.add(shown(4))
        writer.add(shown(4))  # no room
        await writer.flush()
        assert len(database.rows) == 2
        assert database.rows[0].item_keys.tolist() == [100, 101, 102, 103]
        assert database.rows[0].scores.tolist() == [0, 1, 2, 3]
        assert database.rows[0].sources == ["ann"] * 4
        database.away = True
        writer.add(shown(10))
        await writer.flush()
        writer.add(shown(1))  # no room: the others wait
        database.away = False
        await writer.flush()
        assert len(database.rows) == 3
        writer.add(shown(6))
        writer.add(shown(3, user_id="v"))
        writer.forget("u")
        writer.add(shown(7))
        await writer.flush()
        assert [(row.user_id, len(row.item_keys)) for row in database.rows[3:]] == [
            ("v", 3),
            ("u", 7),
        ]
        database.away = True
        writer.add(shown(9))
        await writer.close()
        text = metrics.exposition().decode()
        for status, number in (("written", 28), ("dropped", 5), ("failed", 9)):
            assert f'shortlist_impressions_total{{status="{status}"}} {number}.0' in text

    asyncio.run(scenario())


def test_impressions_that_are_being_written_at_the_end_are_written_again():
    async def scenario() -> None:
        database, metrics = Database(), Metrics()
        started = asyncio.Event()

        async def write(rows) -> int:
            if not started.is_set():
                started.set()
                await asyncio.sleep(60)
            return await database.write(rows)

        writer = ImpressionWriter(write, metrics, capacity=10)
        writer.add(shown(4))
        task = asyncio.create_task(writer.flush())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()
        await writer.close()
        assert [len(row.item_keys) for row in database.rows] == [4]
        assert 'shortlist_impressions_total{status="failed"}' not in metrics.exposition().decode()

    asyncio.run(scenario())


def test_the_proxy_configuration_of_this_ray_is_mended():
    ray = Path(find_spec("ray").origin).parent
    template = runpy.run_path(str(ray / "serve/_private/haproxy_templates.py"))
    mended = mend(template["HAPROXY_CONFIG_TEMPLATE"], Path("/x"))
    assert "mode 666" not in mended
    assert "bind *:" not in mended
    assert "bind :" not in mended
    assert "return status 404" not in mended
    assert mended.count("timeout http-request 10s") == 1
    assert mended.rindex("errorfile 503 /x/503.http") > mended.rindex("config.error_file_path")
    assert mend(mended, Path("/y")) == mended
    with pytest.raises(ConfigError, match="install the pinned Ray"):
        mend("global\n", Path("/x"))


def inputs(rng: np.random.Generator, B: int, C: int, L: int) -> dict[str, np.ndarray]:
    real = np.arange(C) < rng.integers(0, C + 1, B)[:, None]
    return {
        "user": rng.random((B, 3), np.float32),
        "candidates": rng.random((B, C, 4), np.float32) * real[..., None],
        "history": rng.random((B, L, 4), np.float32),
        "lengths": rng.integers(0, L + 1, B),
        "mask": real.astype(np.float32),
    }


def scores_of(given: dict[str, np.ndarray]) -> np.ndarray:
    """Stand for a ranker: padding must not change what it says of real candidates."""
    known = np.arange(given["history"].shape[1]) < given["lengths"][:, None]
    taste = (given["history"] * known[..., None]).sum(axis=1) + given["user"].sum(axis=1)[:, None]
    return np.einsum("bcd,bd->bc", given["candidates"], taste)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32),
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=5
    ),
)
def test_joined_inputs_score_alike(seed, sizes):
    rng = np.random.default_rng(seed)
    parts = [inputs(rng, *size) for size in sizes]
    apart = part(scores_of(join(parts)), parts)
    for mine, scores in zip(parts, apart, strict=True):
        assert scores.shape == mine["mask"].shape
        np.testing.assert_allclose(scores, scores_of(mine), rtol=1e-5)


def test_a_remote_ranker_gives_up_its_turn_while_it_waits():
    turn = threading.Lock()
    seen = []

    async def ask(release, given):
        seen.append((release, turn.locked()))
        return scores_of(given)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    ranker = RemoteRankers(ask, loop).of_release("r1", turn)
    given = inputs(np.random.default_rng(0), 2, 3, 2)
    with turn:
        np.testing.assert_array_equal(ranker.score(given), scores_of(given))
        assert turn.locked()
    assert seen == [("r1", False)]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


def test_logs_are_json(tmp_path):
    logger = logs.setup("INFO", tmp_path / "x.jsonl")
    logger.debug("too small")
    logger.info("took %d", 3, extra={"request_id": "r", "release": "R", "status": 200})
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("failed")
    lines = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert lines[0]["message"] == "took 3"
    assert (lines[0]["request_id"], lines[0]["release"], lines[0]["level"]) == ("r", "R", "info")
    assert "ValueError: broken" in lines[1]["exception"]
    logs.setup("INFO")
    assert not any(isinstance(h, logging.FileHandler) for h in logger.handlers)


class Collector(BaseHTTPRequestHandler):
    received: ClassVar[list[bytes]] = []

    def do_POST(self) -> None:
        self.received.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_spans_of_the_stages_reach_a_collector():
    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tracer = make_tracer(f"http://127.0.0.1:{server.server_port}/v1/traces")
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    timing = {"queue": 1.0, "rank": 2.0, "total": 3.0}
    tracer.record("recommend", 1000.0, timing, {"shortlist.release": "r"}, parent)
    tracer.close()
    server.shutdown()
    message = ExportTraceServiceRequest.FromString(Collector.received[0])
    spans = {s.name: s for s in message.resource_spans[0].scope_spans[0].spans}
    assert set(spans) == {"recommend", "queue", "rank"}
    assert spans["recommend"].trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert spans["rank"].parent_span_id == spans["recommend"].span_id
    assert spans["rank"].start_time_unix_nano == 1_000_001_000_000
    assert spans["rank"].end_time_unix_nano == 1_000_003_000_000
    assert make_tracer(None) is None


def test_the_service_without_tracing_does_not_load_it():
    code = (
        "import serve.app, sys;"
        "sys.exit(any(m.startswith(('opentelemetry.sdk', 'torch', 'ray')) for m in sys.modules))"
    )
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0
