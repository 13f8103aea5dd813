"""The service on Ray Serve behind HAProxy, over real HTTP, in both topologies."""

from __future__ import annotations

import json
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from fixtures_serving import build, settings_for

from ranking.release import promote
from serve.config import ServeConfig, Settings
from serve.deployment import StartError, processes, start
from serve.docs import PROBLEMS


def ids(answer: dict) -> list[str]:
    return [item["id"] for item in answer["items"]]


def test_both_topologies_answer_alike(served, api):
    for user in ("1", "42", "nobody at all"):
        answer = served.recommend(user, 20, exclude_seen=False)
        assert answer["returned"] == 20
        assert ids(answer) == ids(api.recommend(user, 20, exclude_seen=False))


def test_stage_times_explain_the_total_over_1000_requests(served):
    ratios = []
    for number in range(1000):
        timing = served.recommend(str(1 + number % 600), 10, fields=[])["timing_ms"]
        total = timing.pop("total")
        ratios.append(sum(timing.values()) / total)
    assert min(ratios) >= 0.95
    assert max(ratios) <= 1.05


def test_an_event_changes_the_next_answer(served):
    user = f"ray {uuid.uuid4()}"
    before = ids(served.recommend(user, 20))
    event = {"event_id": str(uuid.uuid4()), "user_id": user, "item_id": before[0], "value": 5.0}
    assert served.client.post("/v1/events", json=event).json()["accepted"] == 1
    after = ids(served.recommend(user, 20))
    assert before[0] not in after
    assert after != before


def test_concurrent_requests_get_their_own_answers(served):
    def ask(user: int) -> tuple[int, list[str]]:
        with httpx.Client(base_url=served.client.base_url, timeout=30) as client:
            body = {"user_id": str(user), "count": 10, "exclude_seen": False, "fields": []}
            answers = [client.post("/v1/recommendations", json=body) for _ in range(5)]
        assert {answer.status_code for answer in answers} == {200}
        lists = {tuple(ids(answer.json())) for answer in answers}
        assert len(lists) == 1
        return user, list(lists.pop())

    with ThreadPoolExecutor(8) as pool:
        found = dict(pool.map(ask, range(1, 25)))
    for user in (1, 7, 24):
        alone = served.recommend(str(user), 10, exclude_seen=False, fields=[])
        assert found[user] == ids(alone)


def test_the_same_request_id_gives_the_same_list_from_every_replica(served):
    key = str(uuid.uuid4())
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: served.recommend("9", 5, request_id=key), range(16)))
    answers.append(served.recommend("9", 5, request_id=key))
    assert all(answer == answers[0] for answer in answers)


def test_a_release_flip_loses_no_request(served):
    old = served.recommend("1")["release"]
    new = build(served.database_url, served.settings.home, f"run {uuid.uuid4()}", constant=500.0)
    try:
        seen = set()
        end = time.monotonic() + 20
        while time.monotonic() < end and new not in seen:
            seen.add(served.recommend("1")["release"])  # asserts a 200
        assert new in seen
    finally:
        promote(served.settings.home, old)


def test_metrics_of_all_replicas(served):
    def counted() -> float:
        text = served.client.get("/metrics").text
        lines = [line for line in text.splitlines() if line.startswith("shortlist_requests_total")]
        return sum(float(line.split()[-1]) for line in lines if 'route="recommend",' in line)

    time.sleep(1.2)
    before = counted()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda user: served.recommend(str(user)), range(1, 41)))
    time.sleep(1.2)
    assert counted() == before + 40
    assert served.client.get("/metrics").text.count("shortlist_resident_bytes{") == 2


@pytest.mark.parametrize(
    ("method", "path", "content", "headers", "status"),
    [
        ("POST", "/v1/recommendations", b"{", {}, 400),
        ("POST", "/v1/recommendations", b'{"user_id": "u", "count": 0}', {}, 422),
        ("POST", "/v1/recommendations", b"x" * 10_000_000, {}, 413),
        ("POST", "/v1/recommendations", b"{}", {"content-type": "text/plain"}, 415),
        ("POST", "/v1/recommendations", b'{"user_id": "u"}', {"x-request-id": b"\xff\xfe"}, 200),
        ("POST", "/v1/recommendations", b'{"user_id": "u"}',
         {"x-request-timeout-seconds": "0.000001"}, 200),
        ("GET", "/v1/recommendations", None, {}, 405),
        ("GET", "/nowhere", None, {}, 404),
        ("GET", "/v1/items/%00/similar", None, {}, 422),
    ],
)  # fmt: skip
def test_bad_input_through_the_proxy(served, method, path, content, headers, status):
    headers = {"content-type": "application/json"} | headers
    answer = served.client.request(method, path, content=content, headers=headers)
    assert answer.status_code == status
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status


def exchange(served, request: bytes) -> tuple[bytes, bytes]:
    """Send bytes as they are; return head and body of what comes back."""
    url = served.client.base_url
    with socket.create_connection((url.host, url.port), timeout=30) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"OPTIONS * HTTP/1.1", 404),
        (b"TRACE /healthz HTTP/1.1", 405),
        (b"GET //healthz HTTP/1.0", 404),
    ],
    ids=lambda value: repr(value[:20]) if isinstance(value, bytes) else str(value),
)
def test_odd_http_gets_a_problem_document(served, request_line, status):
    head, body = exchange(served, request_line + b"\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert head.split()[1] == str(status).encode()
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] in PROBLEMS


@pytest.mark.parametrize("line", [b"GET /\xff HTTP/1.1", b"GET /" + b"x" * 70_000, b"\x16\x03"])
def test_what_is_no_http_is_a_400(served, line):
    assert exchange(served, line + b"\r\n\r\n")[0].startswith(b"HTTP/1.1 400")


def test_head_is_a_get_without_its_body(served):
    head, body = exchange(served, b"HEAD /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert body == b""


def test_a_chunked_body_is_bounded_too(served):
    def chunks():
        for _ in range(200):
            yield b" " * 100_000

    headers = {"content-type": "application/json"}
    answer = served.client.post("/v1/events", content=chunks(), headers=headers)
    assert answer.status_code == 413
    assert served.recommend("1")["status"] == "ok"


def test_every_port_is_on_loopback(running):
    _, handle = running
    listening = {
        (process.name(), connection.laddr.ip.removeprefix("::ffff:"))
        for process in processes(handle.instance.name)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert len(listening) >= 6
    assert {address for _, address in listening} == {"127.0.0.1"}


def test_a_taken_port_is_said(served):
    port = served.client.base_url.port
    serve = ServeConfig(port=port)
    with pytest.raises(StartError, match=f"serve.port {port} on 127.0.0.1 is in use"):
        start(Settings(home=served.settings.home, serve=serve))


def test_starting_without_a_release_says_what_to_do(tmp_path, serving_url):
    with pytest.raises(StartError, match=r"no release is promoted in .*; run 'shortlist release"):
        start(settings_for(serving_url, tmp_path))
