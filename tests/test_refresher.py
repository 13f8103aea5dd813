"""The refresh that a service does by itself."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from fixtures_serving import settings_for

from features.database import connect
from features.events import EventRow, record_events
from features.ingest.tables import load_table
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


def test_it_drops_old_raw_events_if_told(connection, database_url, tmp_path):
    connection.execute("insert into items (item_id) values ('a')")
    now = time.time()
    events = [EventRow("u", "a", occurred_at=now - days * 86_400) for days in (1, 91, 96, 400)]
    record_events(connection, events)
    connection.commit()
    wanted = settings_for(database_url, tmp_path, {"refresh_every_s": 0.1, "keep_raw_days": 92})

    def left() -> int:
        connection.rollback()
        return connection.execute("select count(*) from interactions").fetchone()[0]

    with Refresher(wanted):
        end = time.monotonic() + 30
        while left() > 2:
            assert time.monotonic() < end, "nothing was dropped"
            time.sleep(0.05)
    row = connection.execute("select item_events, item_events_90d from item_features").fetchone()
    assert row == (4, 1)


def test_it_reads_the_sources_that_grow(connection, database_url, tmp_path, caplog):
    for name in ("gone", "orders"):
        connection.execute(
            f"create table public.{name} (n int, user_id text, item_id text, ts timestamptz)"
        )
        connection.commit()
        load_table(connection, f"public.{name}", increasing="n")
    connection.execute(
        "drop table public.gone cascade; insert into public.orders values (1, 'u', 'a', now())"
    )
    connection.commit()
    with caplog.at_level("WARNING"), Refresher(settings(database_url, tmp_path, 0.1)):
        end = time.monotonic() + 30
        while connection.execute("select sum(item_events) from item_features").fetchone() != (1,):
            connection.rollback()
            assert time.monotonic() < end, "the event was not counted"
            time.sleep(0.05)
    assert "a source was not read: table 'public.gone': there is none" in caplog.text


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
        end = time.monotonic() + 30
        while len(caplog.messages) < 2:
            assert time.monotonic() < end, "it asked once only"
            time.sleep(0.02)
        assert threads() == ["refresh"]
    assert threads() == []
    assert all(text.startswith("the features were not refreshed: ") for text in caplog.messages)


@pytest.mark.parametrize("every_s", [0.0, 3600.0])
def test_it_does_nothing_before_its_time(connection, database_url, tmp_path, every_s):
    with Refresher(settings(database_url, tmp_path, every_s)):
        assert threads() == (["refresh"] if every_s else [])
    assert threads() == []
    assert refreshes(connection) == 0
