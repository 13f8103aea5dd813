"""One real PostgreSQL for the whole run; an own database, cheap to make, for each test."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from features.database import connect, start_embedded, stop_embedded
from features.ingest.load import load
from features.refresh import refresh
from features.schema import apply

Connection = psycopg.Connection[Any]
_numbers = itertools.count(1)


class Server:
    """A running server and the databases that tests copy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._admin = connect(url)
        self._admin.autocommit = True
        # The tests kill processes, never the machine: nothing need reach the disk.
        for setting in ("fsync = off", "synchronous_commit = off", "full_page_writes = off"):
            self._admin.execute(sql.SQL(f"alter system set {setting}"))
        self._admin.execute("select pg_reload_conf()")

    def url_of(self, name: str) -> str:
        return self.url.replace("@/postgres?", f"@/{name}?")

    def create(self, name: str, template: str = "template0") -> str:
        statement = sql.SQL("create database {} template {} strategy file_copy").format(
            sql.Identifier(name), sql.Identifier(template)
        )
        self._admin.execute(statement)
        return self.url_of(name)

    def copy(self, template: str) -> Iterator[str]:
        name = f"test_{next(_numbers)}"
        yield self.create(name, template)
        self._admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def execute(self, statement: str) -> None:
        self._admin.execute(statement)

    def close(self) -> None:
        self._admin.close()


@pytest.fixture(scope="session")
def database_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def database_server(database_home: Path) -> Iterator[Server]:
    server = Server(start_embedded(database_home))
    yield server
    server.close()
    stop_embedded(database_home)


def _prepare(server: Server, name: str, fill: Callable[[Connection], object]) -> str:
    with connect(server.create(name)) as connection:
        apply(connection)
        fill(connection)
    return name


@pytest.fixture(scope="session")
def empty_template(database_server: Server) -> str:
    return _prepare(database_server, "empty_template", lambda connection: None)


@pytest.fixture(scope="session")
def sample_template(database_server: Server) -> str:
    def fill(connection: Connection) -> None:
        load(connection, "sample", rebase_to_now=True)
        refresh(connection)

    return _prepare(database_server, "sample_template", fill)


@pytest.fixture
def bare_url(database_server: Server) -> Iterator[str]:
    """A database in which nothing was applied."""
    yield from database_server.copy("template0")


@pytest.fixture
def database_url(database_server: Server, empty_template: str) -> Iterator[str]:
    """A database of its own with the schema and no rows."""
    yield from database_server.copy(empty_template)


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A connection to a database of its own with the schema and no rows."""
    with connect(database_url) as found:
        yield found


@pytest.fixture
def sample_url(database_server: Server, sample_template: str) -> Iterator[str]:
    """A database of its own with the MovieLens sample, refreshed, newest event today."""
    yield from database_server.copy(sample_template)


@pytest.fixture(scope="session")
def shared_sample_url(database_server: Server, sample_template: str) -> str:
    """The sample for tests that only read: made once."""
    database_server.create("shared_sample", sample_template)
    return database_server.url_of("shared_sample")


@pytest.fixture
def sample(shared_sample_url: str) -> Iterator[Connection]:
    """A connection to the shared sample, for reading."""
    with connect(shared_sample_url) as found:
        yield found


@pytest.fixture
def people(connection: Connection) -> Connection:
    """Three users and four items, with no events."""
    connection.execute("insert into users (user_id) values ('u1'), ('u2'), ('u3')")
    connection.execute("insert into event_types (event_type) values ('view')")
    connection.execute(
        "insert into items (item_id, categories, created_at) values"
        " ('i1', '{x,y}', now() - interval '400 days'), ('i2', '{x}', null),"
        " ('i3', '{}', now() - interval '3 days'), ('i4', '{z,y,y}', now())"
    )
    connection.commit()
    return connection
