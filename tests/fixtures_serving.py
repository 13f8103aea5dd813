"""A service on the sample with small real models: in a thread of the tests, or on Ray Serve."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import uvicorn
from fixtures_database import Server
from tiny_runs import make_run

from features.database import DatabaseConfig, connect
from ranking.release import ReleaseConfig, build_release
from serve.app import create_app
from serve.config import FeaturesConfig, ServeConfig, Settings
from serve.deployment import RunningService, processes, start


def build(url: str, home: Path, name: str, constant: float = 0.0) -> str:
    """Build and promote a release with small models."""
    with connect(url) as connection:
        run = make_run(connection, home / "models" / name, constant)
        return build_release(connection, run, home, ReleaseConfig(min_recall=0.5))


class Service:
    """A running application, its settings and a client."""

    def __init__(self, settings: Settings, client: httpx.Client) -> None:
        self.settings = settings
        self.client = client

    @property
    def database_url(self) -> str:
        assert self.settings.database.url is not None
        return self.settings.database.url

    def recommend(self, user_id: str, count: int = 10, **fields: object) -> dict[str, object]:
        body = {"user_id": user_id, "count": count, **fields}
        answer = self.client.post("/v1/recommendations", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextlib.contextmanager
def in_thread(settings: Settings, directory: Path) -> Iterator[Service]:
    """Run the application under uvicorn in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(settings, directory), lifespan="on", log_level="warning", access_log=False
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with httpx.Client(base_url=url, timeout=30) as client:
        end = time.monotonic() + 30
        while not server.started:
            assert thread.is_alive(), "the application did not start"
            assert time.monotonic() < end, "the application did not start in time"
            time.sleep(0.02)
        yield Service(settings, client)
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive(), "the application did not stop"


def settings_for(
    url: str, home: Path, features: dict[str, object] | None = None, **serve: object
) -> Settings:
    """Return settings for tests: quick polls, any free port, no refresh behind their backs."""
    options = {"port": 0, "catalogue_poll_s": 0.1, "release_poll_s": 0.2, "impression_flush_s": 0.1}
    return Settings(
        home=home,
        database=DatabaseConfig(url=url),
        serve=ServeConfig.model_validate(options | serve),
        features=FeaturesConfig.model_validate({"refresh_every_s": 0} | (features or {})),
    )


@pytest.fixture(scope="session")
def serving_url(database_server: Server, sample_template: str) -> str:
    """A database with the sample that services of the tests share and change."""
    return database_server.create("serving", sample_template)


@pytest.fixture(scope="session")
def serving_home(serving_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a promoted release of the shared database."""
    home = tmp_path_factory.mktemp("serving")
    build(serving_url, home, "first")
    return home


@pytest.fixture(scope="session")
def api(
    serving_url: str, serving_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """The application without Ray."""
    settings = settings_for(serving_url, serving_home)
    with in_thread(settings, tmp_path_factory.mktemp("instance")) as service:
        yield service


@pytest.fixture(scope="session", params=["colocated", "split"])
def running(
    request: pytest.FixtureRequest, serving_url: str, serving_home: Path
) -> Iterator[tuple[Service, RunningService]]:
    """The service on Ray Serve behind HAProxy, in both topologies one after the other."""
    settings = settings_for(serving_url, serving_home, topology=request.param, replicas=2)
    with start(settings) as service, httpx.Client(base_url=service.url, timeout=30) as client:
        yield Service(settings, client), service
    assert list(processes(service.instance.name)) == [], "stopping left processes behind"
    assert not service.instance.directory.exists()
    service.stop()


@pytest.fixture
def served(running: tuple[Service, RunningService]) -> Service:
    """The service on Ray Serve."""
    return running[0]
