"""The load generator: every request once, honest latencies, and failures that are counted."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from loadtests import generator

DELAY_S = 0.02
CLOSED: set[bytes] = set()


class Handler(socketserver.StreamRequestHandler):
    """Answers each POST with its own body, slowly; in two writes, so that reads are split."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            path = line.split()[1]
            length = 0
            while (header := self.rfile.readline()) not in (b"\r\n", b""):
                if header.lower().startswith(b"content-length:"):
                    length = int(header.split(b":")[1])
            body = self.rfile.read(length)
            if path == b"/close":
                return
            if path == b"/once" and body not in CLOSED:
                CLOSED.add(body)
                return
            status = b"200 OK" if path != b"/broken" else b"500 Internal Server Error"
            time.sleep(DELAY_S)
            head = b"HTTP/1.1 %s\r\nContent-Type: a/b\r\nContent-Length: %d\r\n\r\n"
            self.wfile.write(head % (status, len(body)) + body[:1])
            time.sleep(0.002)
            self.wfile.write(body[1:])


@pytest.fixture
def url() -> Iterator[str]:
    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def echo(url: str, path: str, count: int) -> list[bytes]:
    return [
        generator.post_request(url, path, json.dumps({"n": n, "pad": "é" * n}).encode())
        for n in range(count)
    ]


@pytest.mark.parametrize("clients", [1, 4])
def test_every_request_is_sent_once_and_timed(url: str, clients: int) -> None:
    measured = generator.run(url, echo(url, "/echo", 12), clients, keep=True)
    assert sorted(json.loads(body)["n"] for body in measured.bodies) == list(range(12))
    assert len(measured.latencies_ms) == 12
    assert measured.failed == 0
    assert min(measured.latencies_ms) >= DELAY_S * 1000
    assert measured.seconds >= 12 / clients * DELAY_S
    summary = measured.summary()
    assert summary["p50_ms"] <= summary["p95_ms"] <= summary["p99_ms"]
    assert summary["qps"] == pytest.approx(12 / measured.seconds, rel=0.01)
    assert 0 < summary["client_cpu_ms"] < DELAY_S * 1000


def test_another_status_is_a_failure_not_a_latency(url: str) -> None:
    measured = generator.run(url, echo(url, "/broken", 3), 2)
    assert (measured.failed, measured.latencies_ms) == (3, [])
    assert measured.summary()["qps"] == 0


def test_a_closed_connection_is_opened_again(url: str) -> None:
    measured = generator.run(url, echo(url, "/once", 6), 2, keep=True)
    assert sorted(json.loads(body)["n"] for body in measured.bodies) == list(range(6))
    assert measured.reconnected == 6
    assert measured.failed == 0


def test_a_connection_that_never_lasts_is_an_error(url: str) -> None:
    with pytest.raises(ConnectionError):
        generator.run(url, echo(url, "/close", 2), 1)


def test_nothing_listens() -> None:
    with pytest.raises(OSError, match=r"refused|Connect"):
        generator.run("http://127.0.0.1:1", [b""], 1)


def test_repeat_goes_round() -> None:
    assert generator.repeat([b"a", b"b"], 5) == [b"a", b"b", b"a", b"b", b"a"]
