"""Many callers post events at once: one commit for many, one answer for each."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import httpx
from fixtures_serving import Service, in_thread, settings_for

from features.database import connect


def metric(service: Service, name: str) -> float:
    """Return a series of this replica's metrics, 0 where it has none yet."""
    lines = service.client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


def post_at_once(service: Service, bodies: list[object]) -> list[httpx.Response]:
    """Post each body from a thread of its own, all at the same moment."""
    start = threading.Barrier(len(bodies))
    limits = httpx.Limits(max_connections=len(bodies))

    def post(body: object) -> httpx.Response:
        start.wait()
        return client.post("/v1/events", json=body)

    with (
        httpx.Client(base_url=service.client.base_url, timeout=30, limits=limits) as client,
        ThreadPoolExecutor(len(bodies)) as threads,
    ):
        return list(threads.map(post, bodies))


def test_callers_at_the_same_time_get_their_own_results_and_events_count_once(api):
    prefix = uuid.uuid4()

    def event(user: int, number: int) -> dict[str, object]:
        return {"event_id": f"{prefix} {number}", "user_id": f"{prefix} {user}", "item_id": "1"}

    # Caller n sends the events n and n + 1, one of an unknown item and one that is no event.
    bodies: list[object] = [
        [event(n, n), event(n, n + 1), event(n, -n - 1) | {"item_id": "none"}, {"user_id": "u"}]
        for n in range(24)
    ]
    answers = post_at_once(api, bodies)
    assert {answer.status_code for answer in answers} == {200}
    accepted = Counter()
    for n, answer in enumerate(answers):
        results = answer.json()["results"]
        assert [row.get("id") for row in results] == [
            f"{prefix} {n}", f"{prefix} {n + 1}", f"{prefix} {-n - 1}", None,
        ]  # fmt: skip
        assert {row["status"] for row in results[:2]} <= {"accepted", "duplicate"}
        assert [row["code"] for row in results[2:]] == ["unknown_item", "missing_field"]
        accepted.update(row["id"] for row in results if row["status"] == "accepted")
    assert accepted == {f"{prefix} {n}": 1 for n in range(25)}
    with connect(api.database_url) as connection:
        row = connection.execute(
            "select count(*), count(distinct event_id) from interactions"
            " join users using (user_key) where starts_with(user_id, %s)",
            (str(prefix),),
        ).fetchone()
    assert row == (25, 25)


def test_requests_that_wait_share_a_commit(api):
    item = {"item_id": "1", "user_id": f"shared {uuid.uuid4()}"}
    commits = metric(api, "shortlist_event_commit_rows_count")
    rows = metric(api, "shortlist_event_commit_rows_sum")
    with connect(api.database_url) as connection, ThreadPoolExecutor(1) as threads:
        # The first statement waits for this lock, and the others for the first statement.
        connection.execute("lock table event_ids in access exclusive mode")
        bodies = [item | {"event_id": str(uuid.uuid4())} for _ in range(30)]
        posted = threads.submit(post_at_once, api, bodies)
        time.sleep(0.8)
        connection.rollback()
        answers = posted.result()
    assert [answer.json()["accepted"] for answer in answers] == [1] * 30
    assert metric(api, "shortlist_event_commit_rows_sum") - rows == 30
    assert metric(api, "shortlist_event_commit_rows_count") - commits <= 4


def test_events_beyond_the_queue_are_refused_and_may_be_sent_again(
    serving_url, serving_home, tmp_path
):
    settings = settings_for(serving_url, serving_home, event_queue_rows=4)
    item = {"item_id": "1", "user_id": f"busy {uuid.uuid4()}"}
    bodies = [item | {"event_id": str(uuid.uuid4())} for _ in range(20)]
    with in_thread(settings, tmp_path) as service:
        with connect(service.database_url) as connection, ThreadPoolExecutor(1) as threads:
            connection.execute("lock table event_ids in access exclusive mode")
            posted = threads.submit(post_at_once, service, bodies)
            time.sleep(0.8)
            connection.rollback()
            answers = posted.result()
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.status_code for answer in answers} == {200, 429}
        assert len(refused) >= 20 - 1 - 4 - 1
        assert refused[0].json()["code"] == "overloaded"
        assert int(refused[0].headers["retry-after"]) >= 1
        again = service.client.post("/v1/events", json=bodies).json()
        assert (again["accepted"], again["duplicate"]) == (len(refused), 20 - len(refused))
