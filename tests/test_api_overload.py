"""More than the service can do at once: refused, expired and cancelled requests."""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fixtures_serving import Service, in_thread, settings_for


@pytest.fixture(scope="module")
def narrow(serving_url, serving_home, tmp_path_factory):
    """A service that takes one request at a time and lets two wait."""
    settings = settings_for(serving_url, serving_home, max_queued_requests=2, max_batch_requests=1)
    with in_thread(settings, tmp_path_factory.mktemp("narrow")) as service:
        yield service


def ask_at_once(service: Service, number: int, **fields: object) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=number)
    with (
        httpx.Client(base_url=service.client.base_url, timeout=30, limits=limits) as client,
        ThreadPoolExecutor(number) as pool,
    ):
        body = {"user_id": "1", "count": 300, **fields}
        asked = [pool.submit(client.post, "/v1/recommendations", json=body) for _ in range(number)]
        return [future.result() for future in asked]


def test_a_full_queue_is_a_429_at_once(narrow):
    answers = ask_at_once(narrow, 40)
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 429}
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["code"] == "overloaded"
            assert int(answer.headers["retry-after"]) >= 1
    assert narrow.recommend("1")["status"] == "ok"


def test_a_passed_deadline_is_a_503(api):
    for _ in range(20):
        answers = ask_at_once(api, 30, deadline_ms=1)
        late = [answer for answer in answers if answer.status_code == 503]
        assert {answer.status_code for answer in answers} <= {200, 503}
        if late:
            assert late[0].json()["code"] == "deadline_exceeded"
            break
    else:
        pytest.fail("no request expired")
    assert api.recommend("1")["status"] == "ok"


def test_a_body_that_stalls_is_a_408(serving_url, serving_home, tmp_path):
    settings = settings_for(serving_url, serving_home, body_timeout_s=0.3)
    with in_thread(settings, tmp_path) as service:
        url = service.client.base_url
        with socket.create_connection((url.host, url.port), timeout=10) as connection:
            connection.sendall(
                b"POST /v1/events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                b"content-length: 100\r\n\r\n{"
            )
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 408")
        assert b'"code":"request_timeout"' in answer


def test_clients_that_leave_cost_nothing_and_wedge_nothing(api):
    url = api.client.base_url
    body = json.dumps({"user_id": "1", "count": 300}).encode()
    head = (
        f"POST /v1/recommendations HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode()
    for _ in range(10):
        connections = [socket.create_connection((url.host, url.port)) for _ in range(60)]
        for connection in connections:
            connection.sendall(head + body)
        for connection in connections[1:]:
            connection.close()
        assert connections[0].recv(12) == b"HTTP/1.1 200"
        connections[0].close()
    answers = ask_at_once(api, 20)
    assert {answer.status_code for answer in answers} == {200}
    time.sleep(1.2)
    text = api.client.get("/metrics").text
    dropped = [line for line in text.splitlines() if 'reason="cancelled"' in line]
    assert float(dropped[0].split()[-1]) > 100
    assert 'shortlist_queued_requests{replica="' in text
