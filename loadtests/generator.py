"""A closed-loop load generator that costs little beside what it measures.

Each client is one keep-alive connection that sends its next request when the answer to the last
one has arrived. Requests are bytes made beforehand, and an answer is cut out by its
Content-Length without being parsed: some 20 microseconds of CPU a request, measured and returned
with each result as ``client_cpu_ms``, so that a reader can see what share the client took.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import numpy as np
import uvloop

ATTEMPTS = 3
"""How often one request is sent again before the run fails."""


@dataclass(slots=True)
class Measured:
    """What one run saw.

    Attributes
    ----------
    latencies_ms : list of float
        One for each answer with status 200, in milliseconds.
    failed : int
        Answers with another status.
    reconnected : int
        Requests sent again, since the server had closed the kept connection.
    seconds : float
        From the first request sent to the last answer.
    client_cpu_ms : float
        CPU time of this process for each request, in milliseconds.
    bodies : list of bytes
        The answers themselves, where the caller asked for them.
    """

    latencies_ms: list[float] = field(default_factory=list)
    failed: int = 0
    reconnected: int = 0
    seconds: float = 0.0
    client_cpu_ms: float = 0.0
    bodies: list[bytes] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Return p50, p95 and p99 in milliseconds, and requests a second."""
        if not self.latencies_ms:
            return {"p50_ms": 0.0, "p95_ms": 0.0, "p99_ms": 0.0, "qps": 0.0, "failed": self.failed}
        p50, p95, p99 = np.percentile(self.latencies_ms, (50, 95, 99))
        return {
            "p50_ms": round(float(p50), 3),
            "p95_ms": round(float(p95), 3),
            "p99_ms": round(float(p99), 3),
            "qps": round(len(self.latencies_ms) / self.seconds, 1),
            "failed": self.failed,
            "reconnected": self.reconnected,
            "client_cpu_ms": round(self.client_cpu_ms, 4),
        }


def post_request(url: str, path: str, body: bytes) -> bytes:
    """Return the bytes of one keep-alive POST of a JSON `body`."""
    host = urlsplit(url).netloc
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body


class _Client(asyncio.Protocol):
    """One client; takes requests from a shared iterator until there are none left.

    A server may close a kept connection at any time, as a proxy does when it reloads: then the
    request that got no answer goes out again over a new one, and its time goes on.
    """

    def __init__(
        self, address: tuple[str, int], requests: Iterator[bytes], into: Measured, keep: bool
    ) -> None:
        self.address = address
        self.requests = requests
        self.into = into
        self.keep = keep
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.buffer = bytearray()
        self.body_at = 0
        self.missing = 0
        self.status_ok = False
        self.waiting: bytes | None = None
        self.attempts = 0

    async def connect(self) -> None:
        """Open the connection; a request that waits for its answer is sent at once."""
        await asyncio.get_running_loop().create_connection(lambda: self, *self.address)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class
        if self.waiting is not None:
            self.transport.write(self.waiting)

    def send_next(self) -> None:
        self.waiting = next(self.requests, None)
        self.attempts = 0
        if self.waiting is None:
            self.transport.close()
            return
        self.sent = time.perf_counter()
        self.transport.write(self.waiting)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        if not self.body_at:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.buffer[:end]).lower()
            at = head.find(b"\r\ncontent-length:")
            if at < 0:
                raise ConnectionError("an answer without Content-Length cannot be measured")
            length = int(head[at + 17 :].split(b"\r\n", 1)[0])
            self.body_at, self.missing = end + 4, end + 4 + length
            self.status_ok = head[9:12] == b"200"
        if len(self.buffer) < self.missing:
            return
        if self.status_ok:
            self.into.latencies_ms.append((time.perf_counter() - self.sent) * 1e3)
        else:
            self.into.failed += 1
        if self.keep:
            self.into.bodies.append(bytes(self.buffer[self.body_at :]))
        self.buffer.clear()
        self.body_at = 0
        self.send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.waiting is None:
            self.done.set_result(None)
        elif self.buffer or self.attempts == ATTEMPTS:
            self.done.set_exception(exc or ConnectionError("the server closed the connection"))
        else:
            self.attempts += 1
            self.into.reconnected += 1
            self.again = asyncio.ensure_future(self.connect())
            self.again.add_done_callback(self._reconnected)

    def _reconnected(self, task: asyncio.Future[None]) -> None:
        error = task.exception()
        if error is not None:
            self.done.set_exception(error)


async def _drive(
    url: str, requests: Iterable[bytes], clients: int, into: Measured, keep: bool
) -> None:
    host, port = urlsplit(url).hostname, urlsplit(url).port
    if host is None or port is None:
        raise ConnectionError(f"service url {url!r}: expected http://HOST:PORT")
    shared = iter(requests)
    connections = [_Client((host, port), shared, into, keep) for _ in range(clients)]
    for connection in connections:
        await connection.connect()
    cpu, started = time.process_time(), time.perf_counter()
    for connection in connections:
        connection.send_next()
    await asyncio.gather(*(connection.done for connection in connections))
    into.seconds = time.perf_counter() - started
    answered = max(1, len(into.latencies_ms) + into.failed)
    into.client_cpu_ms = (time.process_time() - cpu) * 1e3 / answered


def run(url: str, requests: Sequence[bytes], clients: int, *, keep: bool = False) -> Measured:
    """Send `requests` over `clients` connections and return what was measured.

    Parameters
    ----------
    url : str
        Scheme, host and port of the service.
    requests : sequence of bytes
        Made by :func:`post_request`; sent in order, each once, by whichever client is free.
    clients : int
        Connections that work at the same time, at least 1.
    keep : bool
        Whether to return the bodies too.

    Raises
    ------
    ConnectionError, OSError
        When the service cannot be reached or breaks off.
    """
    measured = Measured()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_drive(url, requests, clients, measured, keep))
    return measured


def repeat(requests: Sequence[bytes], count: int) -> list[bytes]:
    """Return `count` requests, going round `requests` as often as needed."""
    return list(itertools.islice(itertools.cycle(requests), count))
