"""A database of its own for each data set that is evaluated, kept for the next run.

It lies on the server of the settings beside the main database, which is not touched. Its name
holds the fingerprint of the files, so changed files get another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import make_conninfo

from features import refresh, schema
from features.database import connect
from features.errors import DatabaseUnavailable, InputError
from features.ingest.load import load
from features.ingest.mapping import Wish
from features.ingest.presets import find_files
from ranking.types import Progress

_BLOCK = 1 << 20
_LOCK = "shortlist.experiment_data"


@dataclass(frozen=True, slots=True)
class DataSet:
    """Files that were found, and what tells them from others.

    Attributes
    ----------
    path : Path
        Folder or file.
    fingerprint : str
        16 hexadecimal digits of the hash of the names and contents of the files that are read.
    """

    path: Path
    fingerprint: str

    @property
    def database(self) -> str:
        """Name of its database."""
        return f"shortlist_data_{self.fingerprint}"


def data_set(path: Path) -> DataSet:
    """Return the data set of a folder or file that ``shortlist load`` reads.

    Raises
    ------
    InputError
        There is nothing that can be loaded.
    """
    found = find_files(path, "auto", "auto", Wish())
    paths = [file.path for file in found.events if file.path is not None]
    paths += [] if found.items is None else [found.items.path]
    digest = hashlib.sha256()
    for file in sorted(paths):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return DataSet(path, digest.hexdigest()[:16])


def drop(url: str, data: DataSet) -> None:
    """Drop the database of `data` if there is one."""
    with _admin(url) as admin:
        admin.execute(
            sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(data.database))
        )


@contextmanager
def opened(
    url: str, data: DataSet, progress: Progress | None = None
) -> Iterator[psycopg.Connection[Any]]:
    """Yield a connection to the database of `data`, made, loaded and refreshed where need be.

    What is there already costs little: files that were loaded are not read again, and a refresh
    counts what is new. One process at a time prepares it; others wait.

    Parameters
    ----------
    url : str
        Any database of the server; its user must be allowed to create databases.
    data : DataSet
    progress : callable, optional
        Called as ``progress(step, done, total)``.

    Raises
    ------
    DatabaseUnavailable
        The server refuses a new database.
    InputError
        No event could be loaded.
    """
    report: Progress = progress or (lambda step, done, total, detail="": None)
    with _admin(url) as admin:
        admin.execute("select pg_advisory_lock(hashtextextended(%s, 0))", (_LOCK,))
        _create(admin, data.database)
        connection = connect(make_conninfo(url, dbname=data.database))
        try:
            schema.apply(connection)
            loaded = load(connection, data.path, progress=report)
            if loaded.interactions + loaded.already_loaded == 0:
                first = f" ({loaded.rejects[0].reason})" if loaded.rejects else ""
                raise InputError(
                    f"data {data.path}: no event could be loaded, {loaded.rejected} rows were "
                    f"rejected{first}; 'shortlist load {data.path} --dry-run' shows how it is read"
                )
            refresh.refresh(connection, report)
        except BaseException:
            connection.close()
            raise
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _admin(url: str) -> Iterator[psycopg.Connection[Any]]:
    connection = connect(url)
    try:
        connection.autocommit = True
        yield connection
    finally:
        connection.close()


def _create(admin: psycopg.Connection[Any], name: str) -> None:
    known = admin.execute("select from pg_database where datname = %s", (name,)).fetchone()
    if known is not None:
        return
    try:
        admin.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    except errors.InsufficientPrivilege as error:
        raise DatabaseUnavailable(
            f"database {name!r} cannot be created: {error.diag.message_primary}; let an "
            "administrator run 'alter role … createdb', or unset SHORTLIST_DATABASE_URL to use "
            "the embedded server"
        ) from error
