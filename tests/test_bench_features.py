"""`shortlist bench features`: the synthetic shop, and one small run of all of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from features.database import connect
from loadtests.world import MICROS_A_DAY, World

WORLD = World(users=300, items=200, categories=5)


def test_events_are_those_of_the_seed_in_the_order_of_time() -> None:
    start, end = 10 * MICROS_A_DAY, 40 * MICROS_A_DAY
    events = WORLD.events(20_000, start, end, 0)
    assert (events == WORLD.events(20_000, start, end, 0)).all()
    assert len(events) == len(events["moment"]) > 19_000
    assert (np.diff(events["moment"]) >= 0).all()
    assert events["moment"].min() >= start
    assert events["moment"].max() < end
    assert set(np.unique(events["user_key"])) <= set(range(1, 301))
    assert set(np.unique(events["item_key"])) <= set(range(1, 201))
    other = WORLD.events(20_000, start, end, 1)
    assert (events["user_key"][:1000] != other["user_key"][:1000]).any()


def test_popularity_follows_zipf() -> None:
    events = WORLD.events(200_000, 0, 30 * MICROS_A_DAY, 0)
    counts = np.sort(np.bincount(events["item_key"], minlength=201)[1:])[::-1]
    # Weights 1/rank over 200 items: the first has 1 / H(200) of all, H(200) = 5.878.
    assert abs(counts[0] / len(events) - 1 / 5.878) < 0.01
    assert abs(counts[0] / counts[9] - 10) < 1.5


def test_a_small_run_measures_everything_and_leaves_no_database(
    database_server, database_home: Path, tmp_path: Path
) -> None:
    environment = {
        **{name: text for name, text in os.environ.items() if not name.startswith("SHORTLIST")},
        "SHORTLIST_HOME": str(tmp_path),
        "SHORTLIST_DATABASE_URL": database_server.url,
    }
    scale = "--events 5000 --load-rows 10000 --new-events 100 --users 300 --items 200"
    done = subprocess.run(
        [sys.executable, "-m", "serve.cli", "bench", "features", *scale.split(), "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name in (
        "load_over_copy",
        "refresh_fraction",
        "refresh_fraction_double_history",
        "asof_rows_per_s",
        "asof_over_copy",
        "user_state_over_select",
        "load_peak_mib",
    ):
        assert found[name] > 0, name
    read = found["rows_read"]
    assert sum(read["refresh"].values()) >= 100  # the new events at least
    assert "Index Scan using users_user_id_key on users" in read["user_state"]
    assert read["users_as_of"]
    assert read["items_as_of"]
    size = found["sizes"]
    assert (
        size["double_history"]["interactions"]["rows"] > 1.9 * size["once"]["interactions"]["rows"]
    )
    with connect(database_server.url) as connection:
        names = connection.execute("select datname from pg_database").fetchall()
    assert not [name for (name,) in names if name.startswith("shortlist_bench")]
