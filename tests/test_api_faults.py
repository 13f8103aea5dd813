"""The database goes away, comes back, hangs; files are missing: what callers see meanwhile."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures_database import Server
from fixtures_serving import Service, build, in_thread, settings_for

from features.database import connect
from features.refresh import refresh
from ranking.release import promote

REQUEST = {"user_id": "u"}
EVENT = {"event_id": "e", "user_id": "u", "item_id": "i1"}


class Database:
    """The database of one service, which can be shut to it."""

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url
        self.name = url.split("/")[3].split("?")[0]

    def shut(self) -> None:
        self.server.execute(f'alter database "{self.name}" allow_connections false')
        self.server.execute(
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{self.name}'"
        )

    def open(self) -> None:
        self.server.execute(f'alter database "{self.name}" allow_connections true')

    @contextlib.contextmanager
    def hung(self) -> Iterator[None]:
        """Hold a lock that every statement of the service waits for."""
        with connect(self.url) as connection:
            connection.execute("lock table users, items in access exclusive mode")
            yield


@pytest.fixture
def database(database_server: Server, database_url: str, tmp_path: Path) -> Database:
    """A database with one item, and a release of it in `tmp_path`."""
    with connect(database_url) as connection:
        connection.execute("insert into items (item_id, title) values ('i1', 'One')")
        connection.commit()
        refresh(connection)
    build(database_url, tmp_path, "first")
    return Database(database_server, database_url)


def serving(database: Database, home: Path, **options: object):
    return in_thread(settings_for(database.url, home, **options), home / "instance")


def seconds_until(condition: Callable[[], bool], longest: float = 20.0) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < longest, "it did not happen in time"
        time.sleep(0.05)
    return time.monotonic() - started


def ask(api: Service, **fields: object):
    return api.client.post("/v1/recommendations", json=REQUEST | fields)


def unavailable(answer) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.json()["code"] == "database_unavailable"
    assert int(answer.headers["retry-after"]) >= 1


def test_a_lost_database_is_a_503_and_found_again_soon(database, tmp_path):
    with serving(database, tmp_path) as api:
        assert api.client.get("/readyz").status_code == 200
        database.shut()
        unavailable(ask(api))
        unavailable(api.client.post("/v1/events", json=EVENT))
        unavailable(api.client.put("/v1/items", json={"item_id": "i2"}))
        unavailable(api.client.delete("/v1/items/i1"))
        ready = api.client.get("/readyz")
        assert ready.status_code == 503
        assert not ready.json()["checks"][0]["passed"]
        assert api.client.get("/healthz").status_code == 200
        assert api.client.get("/metrics").status_code == 200
        time.sleep(6)  # long enough for pauses that double to have grown
        database.open()
        assert seconds_until(lambda: ask(api).status_code == 200) < 3
        assert api.client.get("/readyz").status_code == 200


def test_a_hung_database_keeps_nobody_beyond_the_deadline(database, tmp_path):
    with serving(database, tmp_path, deadline_ms=1000) as api:
        with database.hung():
            started = time.monotonic()
            answer = ask(api, deadline_ms=300)
            assert time.monotonic() - started < 0.8
            assert answer.status_code == 503
            assert answer.json()["code"] == "deadline_exceeded"
            for ask_for in (
                lambda: api.client.post("/v1/events", json=EVENT),
                lambda: api.client.put("/v1/items", json={"item_id": "i2"}),
                lambda: api.client.delete("/v1/items/i1"),
            ):
                started = time.monotonic()
                unavailable(ask_for())
                assert time.monotonic() - started < 1.5
        assert seconds_until(lambda: ask(api).status_code == 200) < 3
        # What was refused may be sent again, and counts once.
        seconds_until(lambda: api.client.post("/v1/events", json=EVENT).status_code == 200)


def test_a_release_promoted_while_the_database_is_away_serves_later(database, tmp_path):
    second = build(database.url, tmp_path, "second")
    first = next(
        path.name for path in (tmp_path / "releases").iterdir()
        if path.is_dir() and not path.is_symlink() and path.name != second
    )  # fmt: skip
    promote(tmp_path, first)
    with serving(database, tmp_path) as api:
        assert ask(api).json()["release"] == first
        database.shut()
        promote(tmp_path, second)
        time.sleep(2.5)
        listed = api.client.get("/v1/releases").json()
        assert not any("refused" in row for row in listed["releases"])
        database.open()
        seconds_until(lambda: ask(api).json().get("release") == second)


def test_a_service_that_starts_without_its_database_becomes_ready(database, tmp_path):
    database.shut()
    with serving(database, tmp_path) as api:
        assert api.client.get("/readyz").status_code == 503
        assert ask(api).json()["code"] == "not_ready"
        database.open()
        seconds_until(lambda: api.client.get("/readyz").status_code == 200)
        assert ask(api).status_code == 200


def test_a_current_link_to_nothing_is_refused_and_later_ones_are_followed(database, tmp_path):
    second = build(database.url, tmp_path, "second")
    with serving(database, tmp_path) as api:
        link = tmp_path / "releases" / "current"
        link.unlink()
        link.symlink_to("2020-01-01T00-00-00-0000")
        time.sleep(0.6)
        assert ask(api).json()["release"] == second
        link.unlink()
        link.mkdir()
        time.sleep(0.6)
        assert ask(api).json()["release"] == second
        link.rmdir()
        third = build(database.url, tmp_path, "third")
        seconds_until(lambda: ask(api).json()["release"] == third)


def test_a_lost_directory_costs_no_answer(database, tmp_path):
    with serving(database, tmp_path) as api:
        assert ask(api).status_code == 200
        shutil.rmtree(tmp_path / "instance")
        for _ in range(2):
            assert ask(api, request_id="r").status_code == 200
        time.sleep(1.2)
        assert 'shortlist_requests_total{route="recommend",status="200"} 3.0' in (
            api.client.get("/metrics").text
        )
