"""Loading what nobody means to load: odd paths, pipes, values and names."""

import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from load_files import count

from features.errors import InputError
from features.ingest.load import load
from features.ingest.mapping import Wish
from features.ingest.preview import preview

HEADER = "user_id,item_id,timestamp,value\n"
GOOD = HEADER + "u,a,1000000000,1\n"
BAD = HEADER + "u,a,1000000000,1\nu,a,never,1\n"


def users(connection):
    rows = connection.execute("select user_id from shortlist.users order by user_id").fetchall()
    return [row[0] for row in rows]


def parquet(path, **columns):
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize("text", [GOOD, BAD], ids=["nothing rejected", "one rejected"])
def test_a_file_of_the_user_is_no_place_for_rejects(connection, tmp_path, text):
    source = tmp_path / "clicks.csv"
    source.write_text(text)
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for path in (source, notes):
        before = path.read_text()
        with pytest.raises(InputError, match="is there already and holds no rejected rows"):
            load(connection, source, rejects=path)
        assert path.read_text() == before
    assert count(connection, "shortlist.interactions") == 0


def test_rejects_replace_those_of_an_earlier_load(connection, tmp_path):
    source, path = tmp_path / "clicks.csv", tmp_path / "rejects.csv"
    path.touch()
    source.write_text(BAD)
    load(connection, source, rejects=path)
    load(connection, source, rejects=path, again=True)
    assert len(path.read_text().splitlines()) == 2


def test_rejects_into_a_device_leave_it_there(connection, tmp_path):
    source = tmp_path / "clicks.csv"
    source.write_text(BAD)
    device = tmp_path / "device"
    device.symlink_to(os.devnull)
    assert load(connection, source, rejects=device).rejected == 1
    assert load(connection, source, rejects=device, again=True).rejected == 1
    source.write_text(GOOD)
    load(connection, source, rejects=device, again=True)
    assert device.is_symlink()
    assert stat.S_ISCHR(device.stat().st_mode)


@pytest.mark.parametrize("name", ["folder", "clicks.csv/below", "full"])
def test_rejects_that_cannot_be_written_are_an_error_that_says_so(connection, tmp_path, name):
    source = tmp_path / "clicks.csv"
    source.write_text(BAD)
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(InputError, match=r"rejects .* cannot be written \("):
        load(connection, source, rejects=tmp_path / name)
    assert count(connection, "shortlist.interactions") == 0


def test_numbers_of_any_size_stay_different_ids(connection, tmp_path):
    """Ids of 38 digits, as warehouses export them."""
    large = 10**37
    ids = [Decimal(number) for number in (large, large + 1, 2**53, 2**53 + 1, 7)]
    path = parquet(
        tmp_path / "decimals.parquet",
        user_id=pa.array(ids, pa.decimal128(38, 0)),
        item_id=pa.array([Decimal("1.50"), Decimal("2.00"), Decimal("10.00"), Decimal(0), None]),
        timestamp=pa.array([Decimal("1000000000.25")] * 5),
        value=pa.array([Decimal("0.1")] * 5),
    )
    report = load(connection, path)
    assert [(row.line, row.reason) for row in report.rejects] == [(5, "is empty")]
    assert users(connection) == sorted(str(number) for number in ids[:4])
    items = connection.execute("select item_id from shortlist.items order by item_id").fetchall()
    assert [row[0] for row in items] == ["0", "1.5", "10", "2"]
    moments = connection.execute(
        "select distinct extract(epoch from occurred_at)::float8 from shortlist.interactions"
    ).fetchall()
    assert moments == [(1_000_000_000.25,)]


def test_floats_as_ids_are_each_read_by_themselves(connection, tmp_path):
    floats = [1e300, 2e300, 123456789012345680.0, 0.5, 3.0, float("nan")]
    path = parquet(
        tmp_path / "floats.parquet",
        user_id=pa.array(floats),
        item_id=pa.array(["a"] * 6),
        timestamp=pa.array([1_000_000_000] * 6),
    )
    report = load(connection, path)
    assert [(row.line, row.column, row.reason) for row in report.rejects] == [
        (6, "user_id", "is empty")
    ]
    assert users(connection) == ["0.5", "123456789012345680", "1e+300", "2e+300", "3"]


@pytest.mark.parametrize(
    "ids",
    [pa.array([3.0, 1e300]), pa.array([Decimal("3.00"), Decimal("4.50")])],
    ids=["floats", "decimals"],
)
def test_an_event_id_that_is_a_number_is_one_id_however_its_row_is_read(connection, tmp_path, ids):
    """A time without seconds is read row by row, one with seconds as a column."""
    for name, seconds in (("first", ""), ("again", ":00")):
        path = parquet(
            tmp_path / f"{name}.parquet",
            user_id=pa.array(["u", "v"]),
            item_id=pa.array(["a", "b"]),
            event_id=ids,
            timestamp=pa.array([f"2020-01-02T03:04{seconds}"] * 2),
        )
        report = load(connection, path)
        new = 2 if name == "first" else 0
        assert (report.interactions, report.already_loaded) == (new, 2 - new)
    rows = connection.execute("select event_id from interactions order by event_id").fetchall()
    second = "1e+300" if pa.types.is_floating(ids.type) else "4.5"
    assert [row[0] for row in rows] == sorted(["3", second])


def test_types_and_names_of_parquet_columns_that_cannot_be_events(connection, tmp_path):
    dated = parquet(
        tmp_path / "dated.parquet",
        user_id=pa.array(["u"]),
        item_id=pa.array(["a"]),
        timestamp=pa.array([1_000_000_000]),
        value=pa.array([0], pa.timestamp("s")),
    )
    with pytest.raises(InputError, match=r"column 'value' is of type timestamp\[.*\], expected"):
        load(connection, dated)
    twice = tmp_path / "twice.parquet"
    names = ["user_id", "user_id", "item_id", "timestamp"]
    columns = [pa.array(["u"])] * 3 + [pa.array([1_000_000_000])]
    pyarrow.parquet.write_table(pa.table(columns, names=names), twice)
    with pytest.raises(InputError, match="two columns have the name 'user_id'"):
        load(connection, twice)


def test_a_json_line_nested_without_end_is_one_rejected_row(connection, tmp_path):
    path = tmp_path / "deep.jsonl"
    row = '{"user_id": "u", "item_id": "a", "ts": 1000000000'
    deep = "[" * 100_000 + "]" * 100_000
    path.write_text(f'{row}}}\n{row}, "x": {deep}}}\n{row[:-1]}1}}\n')
    report = load(connection, path)
    assert report.interactions == 2
    assert [row.line for row in report.rejects] == [2]
    assert "nested too deep" in report.rejects[0].reason


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_one_column_may_be_two_things(connection, tmp_path, kind):
    path = tmp_path / f"pairs.{kind}"
    if kind == "parquet":
        parquet(path, who=pa.array(["u"]), ts=pa.array([1_000_000_000]))
    else:
        text = json.dumps({"who": "u", "ts": 1_000_000_000})
        path.write_text(f"{text}\n" if kind == "jsonl" else "who,ts\nu,1000000000\n")
    report = load(connection, path, wish=Wish({"user_id": "who", "item_id": "who"}))
    assert (report.users, report.items, report.interactions) == (1, 1, 1)


def test_lines_that_end_in_cr_alone_are_named(connection, tmp_path):
    path = tmp_path / "old.csv"
    path.write_text(GOOD.replace("\n", "\r"), newline="")
    with pytest.raises(InputError, match="its lines end in CR alone"):
        load(connection, path)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_pipe_is_read_once(connection, tmp_path, kind):
    path = tmp_path / f"pipe.{kind}"
    os.mkfifo(path)
    whole = tmp_path / "whole"
    if kind == "csv":
        whole.write_text(GOOD)
    else:
        parquet(whole, user=pa.array(["u"]), item=pa.array(["a"]), ts=pa.array([1_000_000_000]))
    writer = threading.Thread(target=lambda: path.write_bytes(whole.read_bytes()))
    writer.start()
    assert load(connection, path).interactions == 1
    writer.join()
    writer = threading.Thread(target=lambda: path.write_bytes(whole.read_bytes()))
    writer.start()
    assert len(preview(path)[0].rows) == 1
    writer.join()
    with pytest.raises(InputError, match="cannot be read twice"):
        load(connection, path, rebase_to_now=True)


def test_standard_input_that_is_closed_is_named():
    code = (
        "from features.ingest.preview import preview\n"
        "from features.errors import InputError\n"
        "try: preview('-', kind='csv')\n"
        "except InputError as error: print(error)"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, code], capture_output=True, text=True
    )
    assert done.stdout == "standard input is closed: nothing can be read from it\n"


@contextmanager
def as_an_ordinary_user(folder: Path) -> Iterator[None]:
    """Give up the right of root to read every file, but not the way to `folder`."""
    if os.geteuid():
        yield
        return
    modes = {path: path.stat().st_mode for path in (folder, *folder.parents[:3])}
    for path in modes:
        path.chmod(0o755)
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)
        for path, mode in modes.items():
            path.chmod(mode)


def test_a_file_that_cannot_be_read_is_named(connection, tmp_path):
    with pytest.raises(InputError, match=r"mem: cannot be read \(.*Input/output error"):
        load(connection, "/proc/self/mem", kind="csv")
    locked = tmp_path / "locked.csv"
    locked.write_text(GOOD)
    locked.chmod(0)
    with (
        as_an_ordinary_user(tmp_path),
        pytest.raises(InputError, match=r"locked.csv: cannot be read \(.*Permission denied"),
    ):
        load(connection, locked)


def test_a_folder_that_may_not_be_entered_is_named(connection, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "events.csv").write_text(GOOD)
    inner.chmod(0)
    try:
        for source in (inner, inner / "events.csv"):
            with (
                as_an_ordinary_user(tmp_path),
                pytest.raises(InputError, match=r"inner.* cannot be looked at \(Permission denied"),
            ):
                load(connection, source)
    finally:
        inner.chmod(0o755)
