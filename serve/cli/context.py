"""What every command needs: the settings, and a database that is there while it works."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from features.errors import SchemaError

if TYPE_CHECKING:
    import psycopg

    from serve.config import Settings


def settings() -> Settings:
    """Return the settings of this run: TOML file, environment, defaults."""
    from serve.config import load_settings

    return load_settings()


def _auto(home: Path) -> Path:
    """Return the mark of an embedded server that a command, not the user, started."""
    return home / "postgres.auto"


def keep_running(home: Path) -> None:
    """Make the embedded server the user's: it runs until ``shortlist db stop``."""
    _auto(home).unlink(missing_ok=True)


@contextmanager
def database(wanted: Settings) -> Iterator[str]:
    """Yield the URL of the database, starting the embedded server for as long as it is needed.

    Every command holds a shared lock while it works; the last one to leave stops the server if
    a command started it. A server that the user started, or one that ``SHORTLIST_DATABASE_URL``
    names, is left as it is.
    """
    from features.database import embedded_url, start_embedded, stop_embedded

    if wanted.database.url is not None:
        yield wanted.database.url
        return
    home = wanted.home
    home.mkdir(parents=True, exist_ok=True)
    with (home / "postgres.users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        if embedded_url(home) is None:
            _auto(home).touch()
        url = start_embedded(home)
        try:
            yield url
        finally:
            if _auto(home).exists() and _is_last(users.fileno()):
                stop_embedded(home)
                _auto(home).unlink(missing_ok=True)


def _is_last(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def connected(wanted: Settings) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection for one job; a table that is missing is said with the next step."""
    from psycopg.errors import UndefinedTable

    from features.database import connect

    with database(wanted) as url:
        connection = connect(url)
        try:
            yield connection
        except UndefinedTable as error:
            missing = str(error).splitlines()[0]
            raise SchemaError(
                f"{missing}: run 'shortlist db apply', then 'shortlist load'"
            ) from error
        finally:
            connection.close()
