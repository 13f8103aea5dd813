"""Loading in blocks: duplicates across them, loads that are cut, rejects in a file."""

import csv
import gzip
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_files import HEADER, count, reasons, write

from features.database import connect
from features.erasure import erase_user
from features.errors import InputError
from features.ingest import lines as text_lines
from features.ingest.duplicates import Filter
from features.ingest.lines import CSV, split
from features.ingest.load import load
from features.ingest.mapping import Wish
from features.ingest.presets import EventFile
from features.ingest.readers import open_events
from features.ingest.rows import RowError, event


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of about 100 lines after the first."""
    monkeypatch.setattr(text_lines, "BLOCK_BYTES", 2000)
    monkeypatch.setattr(text_lines, "FIRST_BYTES", 2000)


def some_rows(rows, seed=0):
    """Return lines of a CSV, a tenth of which say what an earlier one says."""
    draw = random.Random(seed)
    lines = []
    for number in range(rows):
        if lines and draw.random() < 0.1:
            lines.append(draw.choice(lines))
            continue
        name = f"id{number}" if draw.random() < 0.3 else ""
        lines.append(
            f"u{draw.randrange(50)},i{draw.randrange(30)},view,{draw.choice(['', 1.5])},"
            f"{draw.randrange(10**9, 10**9 + 100_000)},{name}\n"
        )
    return lines


NAMES = HEADER.replace("\n", ",event_id\n")


def kept(lines):
    """Return what is stored of lines one after the other, obviously."""
    ids, rows, found = set(), set(), []
    for line in lines:
        user, item, kind, value, moment, name = line.strip().split(",")
        row = (user, item, kind, int(moment))
        if (name and name in ids) or (not name and row in rows):
            continue
        ids.add(name)
        rows.add(row)
        found.append((*row, float(value) if value else None, name or None))
    return found


def stored(connection):
    rows = connection.execute(
        "select user_id, item_id, event_type, extract(epoch from occurred_at)::bigint,"
        " value::float8, event_id from interactions inner join users using (user_key)"
        " inner join items using (item_key) inner join event_types using (event_type_key)"
        " order by interaction_id"
    ).fetchall()
    connection.rollback()
    return rows


def test_duplicates_across_blocks_files_and_loads(connection, tmp_path, small_blocks):
    lines = some_rows(3000)
    first, second = lines[:2000], lines[1500:]
    blocks = []
    folder = tmp_path / "one"
    folder.mkdir()
    (folder / "a.csv").write_text(NAMES + "".join(first))
    (folder / "b.csv").write_text(NAMES + "".join(second))
    report = load(connection, folder, on_rows=blocks.append)
    assert len(blocks) > 20
    assert sum(blocks) == 3500
    expected = kept(first + second)
    assert Counter(stored(connection)) == Counter(expected)
    assert report.interactions == len(expected)
    assert report.interactions + report.rejected + report.already_loaded == 3500
    third = some_rows(500, seed=1) + lines[::3]
    again = load(connection, write(tmp_path / "two", NAMES + "".join(third)))
    assert Counter(stored(connection)) == Counter(kept(first + second + third))
    assert again.interactions == len(kept(first + second + third)) - len(expected)


def test_events_that_others_store_meanwhile_are_seen(
    connection, database_url, tmp_path, small_blocks
):
    lines = [line for line in some_rows(2000) if line.endswith(",\n")]
    user, item, kind, moment = kept(lines)[-1][:4]
    blocks = []

    def store_the_last(rows):
        blocks.append(rows)
        if len(blocks) != 2:
            return
        with connect(database_url) as other:
            other.execute("insert into users (user_id) values (%s) on conflict do nothing", [user])
            other.execute("insert into items (item_id) values (%s) on conflict do nothing", [item])
            other.execute(
                "insert into interactions (user_key, item_key, event_type_key, occurred_at)"
                " select user_key, item_key, event_type_key, to_timestamp(%s)"
                " from users, items, event_types"
                " where user_id = %s and item_id = %s and event_type = %s",
                [moment, user, item, kind],
            )

    load(connection, write(tmp_path, NAMES + "".join(lines)), on_rows=store_the_last)
    found = Counter(row[:4] for row in stored(connection))
    assert found == Counter(row[:4] for row in kept(lines))


def test_a_user_who_is_erased_meanwhile_leaves_no_stray_event(
    connection, database_url, tmp_path, small_blocks
):
    lines = [f"u{number % 3},i,view,,{number}\n" for number in range(1000)]
    blocks = []

    def erase(rows):
        blocks.append(rows)
        if len(blocks) == 2:
            with connect(database_url) as other:
                erase_user(other, "u1")

    load(connection, write(tmp_path, HEADER + "".join(lines)), on_rows=erase)
    strays = "select count(*) from interactions left join users using (user_key)"
    assert connection.execute(f"{strays} where user_id is null").fetchone() == (0,)
    after = sum(blocks[:2])
    late = sum(number % 3 == 1 for number in range(after, 1000))
    query = "select count(*) from interactions inner join users using (user_key)"
    assert connection.execute(f"{query} where user_id = 'u1'").fetchone() == (late,)


CUT = """
import sys
from pathlib import Path
from features.database import connect
from features.ingest import lines
from features.ingest.load import load
lines.BLOCK_BYTES = lines.FIRST_BYTES = 20_000
load(connect(sys.argv[1]), Path(sys.argv[2]), rejects=Path(sys.argv[3]))
print("whole")
"""


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_load_that_is_killed_goes_on_and_ends_the_same(
    connection, database_url, tmp_path, ending
):
    lines = some_rows(40_000)
    for at in range(100, 40_000, 1000):
        lines[at] = "bad,,view,1,1000,\n"
    data = (NAMES + "".join(lines)).encode()
    path = tmp_path / f"interactions.csv{ending}"
    path.write_bytes(gzip.compress(data) if ending else data)
    rejects = tmp_path / "rejects.csv"
    draw = random.Random(1)
    kills = 0
    for _ in range(200):
        before = connection.execute("select coalesce(max(rows_done), 0) from loads").fetchone()
        connection.rollback()
        process = subprocess.Popen(
            [sys.executable, "-c", CUT, database_url, str(path), str(rejects)],
            stdout=subprocess.PIPE,
        )
        aim = before[0] + draw.randrange(3000, 12_000)
        while process.poll() is None:
            done = connection.execute("select coalesce(max(rows_done), 0) from loads").fetchone()
            connection.rollback()
            if done[0] >= aim:
                time.sleep(draw.random() * 0.03)
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
        out, _ = process.communicate()
        kills += process.returncode == -signal.SIGKILL
        if out == b"whole\n":
            break
    assert kills >= 2
    good = [line for line in lines if not line.startswith("bad")]
    assert Counter(stored(connection)) == Counter(kept(good))
    assert connection.execute(
        "select rows_done, interactions, finished_at is not null from loads"
    ).fetchall() == [(40_001, len(kept(good)), True)]
    with rejects.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    empty = [int(row["line"]) for row in rows if row["reason"] == "is empty"]
    assert empty == list(range(102, 40_002, 1000))
    assert len(rows) == connection.execute("select rejected from loads").fetchone()[0]


def test_two_loads_of_one_file_at_once_store_it_once(
    connection, database_url, tmp_path, small_blocks
):
    lines = some_rows(3000)
    source = write(tmp_path, NAMES + "".join(lines))
    errors = []

    def run():
        with connect(database_url) as other:
            try:
                load(other, source)
            except InputError as error:
                errors.append(str(error))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("another load of this file is at work" in error for error in errors)
    assert len(errors) < 2
    assert Counter(stored(connection)) == Counter(kept(lines))


@pytest.mark.parametrize("ending", [".gz", ".xz", ".zst"])
def test_what_came_before_the_damage_stays(connection, tmp_path, small_blocks, ending):
    from test_load_formats import PACK

    lines = [f"u{os.urandom(6).hex()},i,view,,{number}\n" for number in range(20_000)]
    whole = PACK[ending]((HEADER + "".join(lines)).encode())
    path = tmp_path / f"events.csv{ending}"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"damaged after line [\d,]+ .* are loaded and stay"):
        load(connection, path)
    stayed = count(connection, "interactions")
    connection.rollback()
    assert 0 < stayed < 20_000
    with pytest.raises(InputError, match=f" {stayed:,} interactions before the damage"):
        load(connection, path)
    path.write_bytes(whole)
    report = load(connection, path)
    assert (report.interactions, report.already_loaded) == (20_000 - stayed, stayed)
    assert sorted(row[3] for row in stored(connection)) == list(range(20_000))


def test_all_rejects_are_in_the_file_and_the_first_hundred_in_the_report(
    connection, tmp_path, small_blocks
):
    source = write(tmp_path, HEADER + "".join(f"u,,view,,{number}\n" for number in range(500)))
    path = tmp_path / "some" / "where.csv"
    report = load(connection, source, rejects=path)
    assert (report.rejected, len(report.rejects), report.rejects_file) == (500, 100, str(path))
    with path.open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[0] == ["file", "line", "column", "reason"]
    assert rows[1:] == [
        ["interactions.csv", str(number + 2), "item_id", "is empty"] for number in range(500)
    ]
    good = write(tmp_path, HEADER + "u,i,view,,1000\n")
    assert load(connection, good, rejects=path).rejects_file is None
    assert not path.exists()


def test_an_item_is_dated_back_to_its_first_event_in_any_block(connection, tmp_path, small_blocks):
    moments = [5000 - number for number in range(400)] + [7000]
    source = write(tmp_path, HEADER + "".join(f"u,i,view,,{moment}\n" for moment in moments))
    load(connection, source)
    load(connection, write(tmp_path, HEADER + "u,i,view,,3000\nu,j,view,,1\n"))
    rows = connection.execute(
        "select item_id, extract(epoch from created_at)::int from items order by item_id"
    ).fetchall()
    assert rows == [("i", 3000), ("j", 1)]


def test_a_line_too_long_to_hold(connection, tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "LONGEST_LINE", 100_000)
    source = write(tmp_path, HEADER + "u,i,view,,1000\n" + "x" * 300_000)
    with pytest.raises(InputError, match=r"interactions\.csv line 3: has more than"):
        load(connection, source)


ODD = st.sampled_from(
    ["", "a", "1", "-1", "1.5", "+2", " 3", "1e3", "1e39", "nan", "0x10", "1_0", "1000", "1e-60",
     "2020-01-02", "2020-01-02T03:04:05Z", "2020-02-30", "2020-01-02 03:04:05.5+02:00", '"q"',
     '"a,b"', 'x"y', '"', "\x00", "\x1f", "ü", "\r", "9" * 300, "²", "99999999999999", "20200102",
     "2020-W01-1", "٣"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    rows=st.lists(st.lists(ODD, min_size=4, max_size=7), max_size=30),
    ends=st.sampled_from(["\n", "\r\n"]),
)
def test_whole_columns_say_what_single_rows_say(tmp_path_factory, rows, ends):
    names = ["user_id", "item_id", "event_type", "value", "occurred_at", "event_id"]
    path = tmp_path_factory.mktemp("odd") / "x.csv"
    # The sample settles the unit: seconds.
    texts = ["u,i,view,1,1000,", *(",".join(row) for row in rows)]
    path.write_bytes(ends.join([",".join(names), *texts]).encode())
    reader = open_events(EventFile(path, "x.csv", "csv", CSV, Wish(time_unit="s")))
    now = time.time()
    found, rejected = [], {}
    for piece in reader.pieces(0, now):
        events = piece.events
        rejected |= {row.line: (row.column, row.reason) for row in events.rejects}
        found += [
            (
                int(events.line[at]),
                events.user.texts[events.user.codes[at]],
                events.item.texts[events.item.codes[at]],
                events.kind.texts[events.kind.codes[at]],
                float(events.value[at]) if events.has_value[at] else None,
                int(events.moment[at]),
                None if events.event_id is None else events.event_id[at].as_py(),
            )
            for at in range(len(events.line))
        ]
    expected, refused = [], {}
    for line, text in enumerate(texts, start=2):
        plain = text.rstrip("\r")
        if not plain:
            continue
        try:
            values = split(plain, ",")
            if len(values) != 6:
                raise RowError("", f"has {len(values)} fields, expected 6")
            row = event(reader.mapping, line, dict(zip(names, values, strict=True)), now)
            value = None if row.value is None else pytest.approx(row.value)
            expected.append((*row[:4], value, *row[5:]))
        except csv.Error as error:
            refused[line] = ("", f"broken quotes: {error}")
        except RowError as error:
            refused[line] = (error.column, error.reason)
    assert found == expected
    assert rejected == refused


def test_what_was_added_to_the_filter_is_never_new():
    import numpy as np

    hashes = np.random.default_rng(0).integers(0, 2**63, 20_000).astype(np.uint64)
    small = Filter(1 << 16)
    small.add(hashes[:10_000])
    assert small.may_hold(hashes[:10_000]).all()
    assert small.may_hold(hashes[10_000:]).mean() < 0.01


def test_rejects_of_bytes_that_are_no_text(connection, tmp_path):
    source = write(tmp_path, HEADER.encode() + b"u,i,view,\xff,1000\n")
    path = tmp_path / "rejects.csv"
    report = load(connection, source, rejects=path)
    assert reasons(report)[0][2] == "value"
    assert "is not a number" in path.read_text()
