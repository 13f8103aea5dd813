"""Reads sources, refreshes the features and drops old raw events every now and then.

One process of a service does it, not each replica; several services, or a job of cron, may do
it at the same time: refreshes of one database wait for each other. Replicas see that the
refresh point moved and take the new item features.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from datetime import UTC, date
from typing import Any

import psycopg

from features.database import connect, resolve_url
from features.errors import ShortlistError
from features.ingest.tables import follow
from features.refresh import refresh
from features.retention import drop_raw_events
from serve.config import Settings
from serve.logs import NAME

_LOGGER = logging.getLogger(NAME)

# Seconds that a refresh under way gets to give up when the service stops.
_STOP_S = 2.0


class Refresher:
    """A thread that refreshes; use it as a context.

    Parameters
    ----------
    settings : Settings
        `features.refresh_every_s` of 0 starts no thread.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stop = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._dropped_on: date | None = None
        self._thread = threading.Thread(target=self._run, name="refresh", daemon=True)

    def __enter__(self) -> Refresher:
        """Start."""
        if self._settings.features.refresh_every_s:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; a refresh under way is given up and changes nothing."""
        self._stop.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.cancel_safe(timeout=_STOP_S)
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._stop.wait(self._settings.features.refresh_every_s):
            try:
                self._refresh()
            except (ShortlistError, psycopg.Error) as error:
                if not self._stop.is_set():
                    _LOGGER.warning("the features were not refreshed: %s", error)
            except Exception:
                _LOGGER.exception("the refresh failed and is tried again")

    def _refresh(self) -> None:
        database, keep_days = self._settings.database, self._settings.features.keep_raw_days
        url = resolve_url(database, self._settings.home)
        with connect(url, database.connect_timeout_s) as connection:
            self._connection = connection
            try:
                for found in follow(connection):
                    if isinstance(found, ShortlistError):
                        _LOGGER.warning("a source was not read: %s", found)
                    elif found.interactions:
                        _LOGGER.info("%s: %d new events", found.source, found.interactions)
                report = refresh(connection, partition_days=database.partition_days)
                _LOGGER.info("features are refreshed as of %s", report.as_of.isoformat())
                today = report.as_of.astimezone(UTC).date()
                if keep_days is not None and self._dropped_on != today:
                    dropped = drop_raw_events(
                        connection, keep_days, partition_days=database.partition_days
                    )
                    self._dropped_on = today
                    _LOGGER.info("raw events stay since %s: %s", dropped.raw_since, dropped.counts)
            finally:
                self._connection = None
