"""Users who ask for recommendations (80%), act on them (15%) and look at similar items (5%).

    locust -f loadtests/locustfile.py --headless -u 32 -r 16 -t 30s --host http://127.0.0.1:8000 \
        --load-users users.json --max-error-rate 0 --max-p95-ms 50 --max-p99-ms 100

Every answer is checked: it is full, or says why not, has no item twice and none that the user
has seen (the list that came with the user, and what the user posted in this run). A wrong answer
counts as an error. Thresholds that are crossed set the exit status to 1.

``shortlist loadtest`` writes the file of users and starts this; it speaks HTTP and nothing else.
"""

from __future__ import annotations

# First: locust patches the standard library, which must happen before anything else opens sockets.
from locust import FastHttpUser, events, task  # isort: skip

import itertools
import json
import random
from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote
from uuid import uuid4

from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtests.checks import Recorder, broken_thresholds, fault, similar_fault

recorder = Recorder()
seen: dict[str, set[str]] = defaultdict(set)
"""External item ids each user has interacted with; simulated users may share one user id."""

turns: itertools.cycle[dict[str, Any]] = itertools.cycle([])


@events.init_command_line_parser.add_listener
def add_arguments(parser: LocustArgumentParser) -> None:
    """Declare this file's own options; each also reads an environment variable."""
    group = parser.add_argument_group("shortlist")
    group.add_argument(
        "--load-users",
        env_var="LOAD_USERS",
        default="",
        help='JSON file [{"id": "u1", "seen": ["i9"]}] of users that exist',
    )
    group.add_argument("--load-report", default="", help="write the measured figures here as JSON")
    group.add_argument("--count", type=int, default=20, help="items asked for in each request")
    group.add_argument(
        "--max-error-rate", type=float, default=0.0, help="share of requests, 0 to 1"
    )
    group.add_argument("--max-p95-ms", type=float, default=0.0, help="0: no limit")
    group.add_argument("--max-p99-ms", type=float, default=0.0, help="0: no limit")


@events.test_start.add_listener
def read_users(environment: Environment, **_: object) -> None:
    """Read the users, or stop the run with a message when there are none."""
    global turns
    path = options(environment).load_users
    try:
        users = json.loads(Path(path).read_text())
        for user in users:
            seen[str(user["id"])].update(user["seen"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        users = []
        print(f"error: --load-users {path!r} is not a list of id and seen: {error}")
    if not users:
        print("next:  shortlist loadtest writes this file and runs locust with it.")
        environment.process_exit_code = 1
        if environment.runner is not None:
            environment.runner.quit()
    turns = itertools.cycle(users)


@events.request.add_listener
def record(name: str, response_time: float, exception: Exception | None, **_: object) -> None:
    """Count every request, and time those that succeeded."""
    recorder.requests += 1
    if exception is None:
        recorder.add(recorder.client, name, response_time)
    else:
        recorder.errors[f"{name}: {exception}"] += 1


@events.quitting.add_listener
def judge(environment: Environment, **_: object) -> None:
    """Write the report and set the exit status from the thresholds."""
    wanted = options(environment)
    broken = broken_thresholds(
        recorder, wanted.max_error_rate, wanted.max_p95_ms, wanted.max_p99_ms
    )
    if wanted.load_report:
        report = {
            "requests": recorder.requests,
            "rps": environment.stats.total.total_rps,
            "error_rate": recorder.error_rate(),
            "errors": dict(recorder.errors),
            "client_ms": recorder.summary(recorder.client),
            "stages_ms": recorder.summary(recorder.stages),
            "broken_thresholds": broken,
        }
        Path(wanted.load_report).write_text(json.dumps(report))
    environment.process_exit_code = 1 if broken else (environment.process_exit_code or 0)


def options(environment: Environment) -> Namespace:
    """Return the parsed command line of this run."""
    return cast(Namespace, environment.parsed_options)


class Reader(FastHttpUser):
    """One person: asks, acts on what came, asks again, without pausing."""

    connection_timeout = 5.0
    network_timeout = 10.0

    def on_start(self) -> None:
        """Take the next user of the file."""
        self.user_id = str(next(turns, {"id": "nobody"})["id"])
        self.count = options(self.environment).count
        self.latest: list[str] = []
        self.rec_id: str | None = None

    @task(80)
    def recommendations(self) -> None:
        """Ask for a list and check it."""
        # What is seen now: a post of another simulated user of this id may still be under way.
        forbidden = set(seen[self.user_id])
        body = {
            "user_id": self.user_id,
            "count": self.count,
            "scenario": "loadtest",
            "fields": ["title"],
        }
        with self.client.post(
            "/v1/recommendations", json=body, name="recommendations", catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
                return
            answer = json.loads(response.content)
            for stage, milliseconds in answer["timing_ms"].items():
                recorder.add(recorder.stages, stage, milliseconds)
            wrong = fault(answer, self.count, forbidden)
            if wrong:
                response.failure(wrong)
                return
            self.latest = [item["id"] for item in answer["items"]]
            self.rec_id = answer["rec_id"]

    @task(15)
    def event(self) -> None:
        """Interact with one item of the latest list; it must not come back."""
        if not self.latest:
            self.recommendations()
            return
        item_id = random.choice(self.latest)  # noqa: S311 - load, not secrets
        row = {
            "event_id": f"loadtest-{uuid4()}",
            "user_id": self.user_id,
            "item_id": item_id,
            "event_type": "rating",
            "value": random.choice((3.0, 4.0, 5.0)),  # noqa: S311 - load, not secrets
        }
        with self.client.post(
            "/v1/events", json=row, name="events", catch_response=True
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
                return
            answer = json.loads(response.content)
            if answer["accepted"] != 1:
                response.failure(f"event not accepted: {response.text[:200]}")
                return
            seen[self.user_id].add(item_id)

    @task(5)
    def similar(self) -> None:
        """Look at items like one of the latest list."""
        if not self.latest:
            self.recommendations()
            return
        item_id = random.choice(self.latest)  # noqa: S311 - load, not secrets
        with self.client.get(
            f"/v1/items/{quote(item_id, safe='')}/similar?count=10",
            name="similar",
            catch_response=True,
        ) as response:
            if response.status_code != 200:
                response.failure(f"status {response.status_code}")
                return
            wrong = similar_fault(json.loads(response.content), item_id)
            if wrong:
                response.failure(wrong)
