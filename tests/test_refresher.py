"""The refresh that a service does by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fixtures_serving import settings_for

from features.database import connect
from serve.config import Settings
from serve.refresher import Refresher


def settings(url: str, home: Path, every_s: float) -> Settings:
    return settings_for(url, home, {"refresh_every_s": every_s})


def refreshes(connection) -> int:
    connection.rollback()
    row = connection.execute("select count(distinct as_of) from feature_refreshes").fetchone()
    return row[0]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "refresh"]


def test_it_refreshes_again_and_again_until_it_is_stopped(connection, database_url, tmp_path):
    connection.execute("insert into items (item_id) values ('a')")
    connection.commit()
    with Refresher(settings(database_url, tmp_path, 0.1)):
        end = time.monotonic() + 30
        while refreshes(connection) < 2:
            assert time.monotonic() < end, "nothing was refreshed"
            time.sleep(0.05)
    assert threads() == []
    done = refreshes(connection)
    time.sleep(0.4)
    assert refreshes(connection) == done


def test_it_stops_while_it_waits_for_another_refresh(connection, database_url, tmp_path):
    connection.execute("select pg_advisory_xact_lock(hashtextextended('shortlist.refresh', 0))")
    with Refresher(settings(database_url, tmp_path, 0.05)), connect(database_url) as watcher:
        end = time.monotonic() + 30
        while not watcher.execute(
            "select from pg_locks where locktype = 'advisory' and not granted"
        ).fetchall():
            assert time.monotonic() < end, "it never waited"
            time.sleep(0.02)
            watcher.rollback()
    assert threads() == []
    connection.rollback()
    assert refreshes(connection) == 0


def test_a_database_that_is_away_is_asked_again(tmp_path, caplog):
    url = f"postgresql:///x?host={tmp_path}"
    with caplog.at_level("WARNING"), Refresher(settings(url, tmp_path, 0.05)):
        time.sleep(0.5)
        assert threads() == ["refresh"]
    assert threads() == []


@pytest.mark.parametrize("every_s", [0.0, 3600.0])
def test_it_does_nothing_before_its_time(connection, database_url, tmp_path, every_s):
    with Refresher(settings(database_url, tmp_path, every_s)):
        assert threads() == (["refresh"] if every_s else [])
    assert threads() == []
    assert refreshes(connection) == 0
