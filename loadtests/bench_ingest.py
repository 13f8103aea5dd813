"""A load of a file beside a bare binary COPY of its rows: the first part of ``bench features``."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from psycopg import sql

from features.database import connect
from loadtests.world import COLUMNS, HISTORY_DAYS, MICROS_A_DAY, World

Report = Callable[[str, int, int], None]


def write_csv(world: World, rows: int, path: Path) -> None:
    """Write a file of events in the layout ``csv``, times in whole seconds."""
    import pyarrow
    from pyarrow import csv

    now = int(time.time() * 1e6)
    events = world.events(rows, now - HISTORY_DAYS * MICROS_A_DAY, now, 0)
    table = pyarrow.table(
        {
            "user_id": np.char.add("u", events["user_key"].astype(str)),
            "item_id": np.char.add("i", events["item_key"].astype(str)),
            "occurred_at": events["moment"] // 1_000_000,
            "value": events["value"],
        }
    )
    csv.write_csv(table, path)


# In a process of its own, so that its peak memory is that of the load.
_LOAD = """
import json, sys, time
from pathlib import Path
from features.database import connect
from features.ingest.load import load

with connect(sys.argv[1]) as connection:
    started = time.perf_counter()
    report = load(connection, sys.argv[2])
    seconds = time.perf_counter() - started
# Of this program alone; getrusage would count the one that started it, too.
status = Path("/proc/self/status").read_text().splitlines()
peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
print(json.dumps({"rows": report.interactions, "seconds": seconds, "peak_mib": peak}))
"""


def _load_in_a_process(url: str, path: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, url, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"the load failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _copy_out(connection: psycopg.Connection[Any], path: Path) -> None:
    # In the order of the file, which is that of time: a bare COPY stores rows as they come.
    statement = sql.SQL(
        "copy (select {} from shortlist.interactions order by occurred_at, interaction_id)"
        " to stdout (format binary)"
    ).format(sql.SQL(", ").join(map(sql.Identifier, COLUMNS)))
    with path.open("wb") as file, connection.cursor() as cursor, cursor.copy(statement) as copy:
        for block in copy:
            file.write(block)
    connection.commit()


def _copy_in(connection: psycopg.Connection[Any], path: Path) -> float:
    """Return the seconds of a bare binary COPY of the file into interactions."""
    statement = sql.SQL("copy shortlist.interactions ({}) from stdin (format binary)").format(
        sql.SQL(", ").join(map(sql.Identifier, COLUMNS))
    )
    started = time.perf_counter()
    with (
        connection.transaction(),
        connection.cursor() as cursor,
        path.open("rb") as file,
        cursor.copy(statement) as copy,
    ):
        while block := file.read(1 << 20):
            copy.write(block)
    return time.perf_counter() - started


def measure_load(url: str, world: World, rows: int, rounds: int, report: Report) -> dict[str, Any]:
    """Load a file of `rows` events and copy the same rows bare into the same table, in turns."""
    taken = []
    with tempfile.TemporaryDirectory() as folder, connect(url) as connection:
        path, copied = Path(folder) / "interactions.csv", Path(folder) / "rows"
        write_csv(world, rows, path)
        for number in range(rounds):
            report("load", number, rounds)
            connection.execute(
                "truncate shortlist.interactions, shortlist.event_ids, shortlist.loads,"
                " shortlist.users, shortlist.items, shortlist.event_types restart identity"
            )
            connection.commit()
            loaded = _load_in_a_process(url, path)
            _copy_out(connection, copied)
            connection.execute("truncate shortlist.interactions")
            connection.commit()
            bare = _copy_in(connection, copied)
            taken.append({**loaded, "copy_seconds": bare})
        file_mib = path.stat().st_size / 2**20
        connection.execute(
            "truncate shortlist.interactions, shortlist.loads, shortlist.users, shortlist.items,"
            " shortlist.event_types restart identity"
        )
        connection.commit()
    count = taken[0]["rows"]
    return {
        "load_over_copy": statistics.median(row["copy_seconds"] / row["seconds"] for row in taken),
        "load_rows": count,
        "load_file_mib": file_mib,
        "load_rows_per_s": statistics.median(count / row["seconds"] for row in taken),
        "copy_rows_per_s": statistics.median(count / row["copy_seconds"] for row in taken),
        "load_peak_mib": max(row["peak_mib"] for row in taken),
    }
