"""`shortlist loadtest` against the real service: what it measures, refuses and cleans up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from fixtures_serving import Service

from features.database import connect
from loadtests.run import Load, LoadTestFailed, run
from serve.cli.people import example_users, forget_load, liked, sample_users

LoadTest = Callable[..., subprocess.CompletedProcess[str]]
STAGES = ["parse", "queue", "user_state", "retrieve", "features", "rank", "rerank", "respond"]


@pytest.fixture
def url(api: Service) -> str:
    return str(api.client.base_url).rstrip("/")


@pytest.fixture
def loadtest(api: Service, url: str) -> LoadTest:
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "serve.cli", "loadtest", "--url", url, *arguments]
        environment = {
            **os.environ,
            "SHORTLIST_HOME": str(api.settings.home),
            "SHORTLIST_DATABASE_URL": api.database_url,
            # What Locust would read of a user's own must not matter.
            "LOCUST_USERS": "999",
        }
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    return call


def written(api: Service) -> tuple[int, int]:
    """Return how many events and impressions of load tests the database has."""
    with connect(api.database_url) as connection:
        events = connection.execute(
            "select count(*) from interactions where event_id like 'loadtest-%'"
        ).fetchone()
        shown = connection.execute(
            "select count(*) from impressions where scenario = 'loadtest'"
        ).fetchone()
    assert events is not None
    assert shown is not None
    return int(events[0]), int(shown[0])


def test_a_good_service_passes(loadtest: LoadTest, api: Service) -> None:
    result = loadtest("--users", "4", "--seconds", "4", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["error_rate"] == 0
    assert report["errors"] == {}
    assert report["broken_thresholds"] == []
    client = report["client_ms"]
    assert set(client) == {"recommendations", "events", "similar"}
    assert report["requests"] == sum(row["count"] for row in client.values())
    assert client["recommendations"]["count"] / report["requests"] == pytest.approx(0.8, abs=0.1)
    assert list(report["stages_ms"]) == [*STAGES, "total"]
    total = report["stages_ms"]["total"]
    assert total["p50"] <= client["recommendations"]["p50"]
    assert total["count"] == client["recommendations"]["count"]
    assert written(api) == (0, 0)


def test_a_crossed_limit_exits_with_1(loadtest: LoadTest) -> None:
    result = loadtest("--users", "2", "--seconds", "2", "--max-p99-ms", "0.01")
    assert result.returncode == 1
    assert "failed: p99 of recommendations" in result.stderr
    assert "user_state" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_seen_item_in_a_list_is_an_error(api: Service, url: str) -> None:
    # The service cannot know of this "seen" item, so its right answer must look wrong.
    user = "load-test-reader"
    items = api.recommend(user, 20)["items"]
    assert isinstance(items, list)
    report = run(url, [(user, [items[0]["id"]])], Load(users=1, seconds=2))
    assert report["error_rate"] > 0.5
    assert report["errors"]["recommendations: an item that the user has seen"] > 0
    assert report["broken_thresholds"] != []
    with connect(api.database_url) as connection:
        forget_load(connection)


def test_nothing_listens_is_a_failed_run() -> None:
    report = run("http://127.0.0.1:1", [("1", [])], Load(users=1, seconds=1))
    assert report["error_rate"] == 1
    assert any("error rate" in broken for broken in report["broken_thresholds"])


def test_no_users_is_said() -> None:
    with pytest.raises(LoadTestFailed, match="there is no user to be"):
        run("http://127.0.0.1:1", [], Load(users=1, seconds=1))


def test_a_locust_that_cannot_start_is_said() -> None:
    with pytest.raises(LoadTestFailed, match="no report"):
        run("http://127.0.0.1:1", [("1", [])], Load(users=-1, seconds=1))


def test_people_of_the_database(api: Service) -> None:
    with connect(api.database_url) as connection:
        people = sample_users(connection, 50)
        assert people == sample_users(connection, 50)
        assert people != sample_users(connection, 50, seed=1)
        assert len(people) == 50
        assert all(len(set(seen)) == len(seen) > 0 for _, seen in people)
        examples = example_users(connection, 3)
        assert len(set(examples)) == 3
        values = [value for _, value in liked(connection, examples[1], 5)]
        assert values == sorted(values, key=lambda value: -(value or 0))
        assert liked(connection, "nobody", 5) == []
