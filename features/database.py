"""Where PostgreSQL is: the embedded server by default, any other by its URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg_pool import AsyncConnectionPool
from pydantic import BaseModel, ConfigDict, Field

from features.binary import register
from features.embedded import embedded_url, start_embedded, stop_embedded
from features.errors import DatabaseUnavailable
from features.partitions import PARTITION_DAYS

__all__ = [
    "DatabaseConfig",
    "connect",
    "embedded_url",
    "open_pool",
    "resolve_url",
    "start_embedded",
    "stop_embedded",
]

_RECONNECT_S = 1.0
_SESSION_OPTIONS = "-c search_path=shortlist -c timezone=UTC"


class DatabaseConfig(BaseModel):
    """How to reach PostgreSQL and how long to wait for it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str | None = Field(
        default=None,
        repr=False,  # it may hold a password
        description="URL of a PostgreSQL 18 database; none starts the embedded server.",
    )
    pool_min_size: int = Field(
        default=1, ge=0, description="Connections each replica keeps open, in connections."
    )
    pool_max_size: int = Field(
        default=4, ge=1, description="Most connections a replica opens, in connections."
    )
    max_waiting: int = Field(
        default=256, ge=0, description="Requests that may wait for a connection; 0: no limit."
    )
    pool_timeout_s: float = Field(
        default=1.0, gt=0, description="Longest wait for a connection of the pool, in seconds."
    )
    connect_timeout_s: int = Field(
        default=5, ge=1, description="Longest wait for PostgreSQL to accept, in seconds."
    )
    statement_timeout_ms: int = Field(
        default=2000,
        ge=0,
        description="PostgreSQL ends a statement of the pool after this, in ms; 0: never.",
    )
    partition_days: int = Field(
        default=PARTITION_DAYS,
        ge=1,
        description="Time that a new partition of raw events covers, in days.",
    )


def resolve_url(config: DatabaseConfig, home: Path) -> str:
    """Return the configured URL, or start the embedded server in `home` and return its URL.

    Raises
    ------
    DatabaseUnavailable
        The embedded server does not start.
    """
    return config.url if config.url is not None else start_embedded(home)


def _shown(url: str) -> str:
    """Return where `url` leads, without its password, for messages."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "(not a PostgreSQL URL)"
    return make_conninfo("", **{**parts, "password": None})


def connect(url: str, connect_timeout_s: int = 5) -> psycopg.Connection[Any]:
    """Open a connection for jobs: transactions are explicit, times are UTC.

    Parameters
    ----------
    url : str
        PostgreSQL URL or DSN.
    connect_timeout_s : int
        Longest wait, in seconds.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL does not answer at `url`.
    """
    try:
        connection = psycopg.connect(
            url, options=_SESSION_OPTIONS, connect_timeout=connect_timeout_s
        )
    except (psycopg.OperationalError, psycopg.ProgrammingError) as error:
        raise DatabaseUnavailable(
            f"database {_shown(url)}: {str(error).strip()}; start the embedded server with"
            " 'shortlist db start' or correct SHORTLIST_DATABASE_URL"
        ) from error
    register(connection)
    return connection


async def _configure(connection: AsyncConnection[Any]) -> None:
    register(connection)


def open_pool(url: str, config: DatabaseConfig) -> AsyncConnectionPool[AsyncConnection[Any]]:
    """Return a pool for the hot path; the caller opens it (``async with pool:``) and closes it.

    Connections commit by themselves and prepare each statement at its first use, so that a
    read is one round trip. No connection is checked before use: that would be a second one.
    """
    return AsyncConnectionPool(
        url,
        min_size=config.pool_min_size,
        max_size=max(config.pool_max_size, config.pool_min_size),
        max_waiting=config.max_waiting,
        timeout=config.pool_timeout_s,
        # Not minutes with ever longer pauses: the next request tries again, so a database that
        # is back is used within about a second.
        reconnect_timeout=_RECONNECT_S,
        open=False,
        configure=_configure,
        kwargs={
            "autocommit": True,
            "prepare_threshold": 0,
            "connect_timeout": config.connect_timeout_s,
            "options": (
                f"{_SESSION_OPTIONS} -c statement_timeout={config.statement_timeout_ms}"
                # Planning a user state takes longer than running it, and each is the same.
                " -c plan_cache_mode=force_generic_plan -c jit=off"
            ),
        },
    )
