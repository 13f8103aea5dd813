"""Loading: the same events whatever the format, from files, folders and standard input."""

import gzip
import io
import json
import lzma
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from load_files import count, reasons

from features.errors import InputError
from features.ingest.load import load
from features.ingest.mapping import Wish, read_wish
from features.ingest.preview import preview

EVENTS = [
    # user, item, type, value, unix time, event id
    ("u1", "a", "view", None, 1_000_000_000.0, "e1"),
    ("ü,2", 'b "q"', "buy", 2.5, 1_000_000_001.5, "e2"),
    ("3", "a", "view", -1e-3, 1_000_000_002.25, None),
    ("u1", "🎬", "view", 0.0, 1_000_000_003.0, None),
    ("u1", "🎬", "view", 0.0, 1_000_000_003.0, None),
    ("", "a", "view", 1.0, 1_000_000_004.0, None),
    ("u1", "a", "view", 1.0, -5.0, None),
]
NAMES = ["user_id", "item_id", "event_type", "value", "occurred_at", "event_id"]
STORED = [
    ("u1", "a", "view", None, 1_000_000_000_000_000, "e1"),
    ("ü,2", 'b "q"', "buy", 2.5, 1_000_000_001_500_000, "e2"),
    ("3", "a", "view", -0.001, 1_000_000_002_250_000, None),
    ("u1", "🎬", "view", 0.0, 1_000_000_003_000_000, None),
]


def zstd(data):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


def cell(value):
    return "" if value is None else str(value)


def quoted(text, separator):
    if separator in text or '"' in text:
        return '"' + text.replace('"', '""') + '"'
    return text


def separated(separator):
    rows = [NAMES, *EVENTS]
    lines = [separator.join(quoted(cell(value), separator) for value in row) for row in rows]
    return "\n".join(lines).encode()


def jsonl():
    rows = [dict(zip(NAMES, row, strict=True)) for row in EVENTS]
    rows[0]["more"] = {"nested": [1]}
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet():
    columns = [list(column) for column in zip(*EVENTS, strict=True)]
    times = [int(value * 1e6) for value in columns[4]]
    columns[4] = pa.array(times, pa.timestamp("us", "UTC"))
    columns[2] = pa.array(columns[2]).dictionary_encode()
    sink = io.BytesIO()
    pa.parquet.write_table(pa.table(dict(zip(NAMES, columns, strict=True))), sink)
    return sink.getvalue()


FORMATS = {
    "csv": lambda: separated(","),
    "tsv": lambda: separated("\t"),
    "jsonl": jsonl,
    "parquet": parquet,
}


def stored(connection):
    return connection.execute(
        "select user_id, item_id, event_type, value::float8,"
        " (extract(epoch from occurred_at) * 1000000)::bigint, event_id from interactions"
        " inner join users using (user_key) inner join items using (item_key)"
        " inner join event_types using (event_type_key) order by occurred_at"
    ).fetchall()


def check(connection, report):
    rows = [(*row[:3], row[3] and pytest.approx(row[3]), *row[4:]) for row in STORED]
    assert stored(connection) == rows
    assert (report.interactions, report.rejected) == (4, 3)
    assert {(row.column, row.reason.split("'")[-1]) for row in report.rejects} == {
        ("", "says the same as an earlier line"),
        ("user_id", "is empty"),
        ("occurred_at", " lies before 1970"),
    }


@pytest.mark.parametrize("ending", PACK)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_and_compression(connection, tmp_path, kind, ending):
    path = tmp_path / f"events.{kind}{ending}"
    path.write_bytes(PACK[ending](FORMATS[kind]()))
    report = load(connection, path)
    check(connection, report)
    first = 1 if kind in ("jsonl", "parquet") else 2
    assert [row.line for row in report.rejects] == [first + 4, first + 5, first + 6]
    again = load(connection, path)
    assert (again.interactions, again.already_loaded, again.loaded_before) == (0, 4, [path.name])
    forced = load(connection, path, again=True)
    assert (forced.interactions, forced.already_loaded, forced.loaded_before) == (0, 4, [])


@pytest.mark.parametrize("ending", ["", ".zst"])
@pytest.mark.parametrize("kind", FORMATS)
def test_standard_input(connection, database_url, kind, ending):
    code = (
        "import sys; from features.database import connect; from features.ingest.load import load\n"
        f"print(load(connect({database_url!r}), '-', kind={kind!r}).interactions)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=PACK[ending](FORMATS[kind]()), capture_output=True
    )
    assert done.stdout == b"4\n", done.stderr
    assert count(connection, "interactions") == 4
    assert count(connection, "loads") == 0


def test_standard_input_says_what_it_needs(connection):
    with pytest.raises(InputError, match="add --format"):
        load(connection, "-")
    with pytest.raises(InputError, match="cannot be read twice"):
        load(connection, "-", kind="csv", rebase_to_now=True)


def test_columns_without_a_header_between_double_colons(connection, tmp_path):
    path = tmp_path / "clicks.dat"
    path.write_text("1::x:y::1000\n2::z::2000\n3::z\n")
    wish = Wish(names=("who", "sku", "when"), columns={"user_id": "who", "occurred_at": "when"})
    report = load(connection, path, wish=wish)
    assert reasons(report) == [("clicks.dat", 3, "", "has 2 fields, expected 3")]
    assert [row[:3] for row in stored(connection)] == [
        ("1", "x:y", "interaction"),
        ("2", "z", "interaction"),
    ]


def test_a_folder_of_files_in_the_order_of_their_names(connection, tmp_path):
    (tmp_path / "b.csv").write_text("user,item,ts\nu,a,2000\nu,c,3000\n")
    (tmp_path / "a.jsonl").write_text('{"uid": 7, "sku": "a", "event_time": 1000}\n')
    (tmp_path / "items.csv").write_text("item_id,title\na,Tent\n")
    (tmp_path / "notes.txt").write_text("nothing to load\n")
    report = load(connection, tmp_path)
    assert reasons(report) == [
        ("b.csv", 3, "item", "item 'c' is neither in items.csv nor in the database")
    ]
    assert [row[:2] for row in stored(connection)] == [("7", "a"), ("u", "a")]
    names = connection.execute("select source, interactions, rejected from loads order by load_id")
    assert names.fetchall() == [("a.jsonl", 1, 0), ("b.csv", 1, 1)]
    (tmp_path / "c.csv").write_text("user,item,ts\nu,a,2000\nu,a,4000\n")
    more = load(connection, tmp_path)
    assert (more.interactions, more.already_loaded) == (1, 3)
    assert more.loaded_before == ["a.jsonl", "b.csv"]


@pytest.mark.parametrize(
    ("header", "row", "moment"),
    [
        ("userId,movieId,rating,timestamp", "1,2,3,1700000000", 1_700_000_000),
        ("timestamp,visitorid,event,itemid,transactionid", "1433221332117,1,view,2,", 1433221332),
        ("uid,sku,ts,score", "1,2,1700000000123456,3", 1_700_000_000),
        ("User ID,Product-Id,Event Time", "1,2,2023-11-14 22:13:20+00:00", 1_700_000_000),
        ("customer_id,parent_asin,date", "1,2,2023-11-14", 1_699_920_000),
    ],
)
def test_usual_names_and_units_of_time(connection, tmp_path, header, row, moment):
    path = tmp_path / "some.csv"
    path.write_text(f"{header}\n{row}\n")
    assert load(connection, path).rejected == 0
    user, item, _, _, micros, _ = stored(connection)[0]
    assert (user, item, micros // 1_000_000) == ("1", "2", moment)


def test_a_mapping_file_and_flags_over_it(connection, tmp_path):
    toml = tmp_path / "mapping.toml"
    toml.write_text(
        'separator = ";"\ntime_unit = "ms"\nevent_type = "buy"\n'
        '[columns]\nuser_id = "who"\nitem_id = "what"\noccurred_at = "when"\n'
    )
    path = tmp_path / "orders.csv"
    path.write_text('who;what;when;other\nu;"x;y";5000;z\n')
    wish = Wish({"user_id": "other"}).over(read_wish(toml))
    assert load(connection, path, wish=wish).interactions == 1
    assert stored(connection) == [("z", "x;y", "buy", None, 5_000_000, None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colums = 1", "'colums' is none of columns, names"),
        ("columns = 1", "expected a table of texts"),
        ("[columns]\nuser = 'a'", "mapping of 'user': expected one of user_id"),
        ("time_unit = 'h'", "time_unit is 'h', expected auto, s, ms or us"),
        ("separator = 'ab'", "separator is 'ab'"),
        ("= 1", "cannot be read"),
    ],
)
def test_a_mapping_file_that_is_wrong(tmp_path, text, message):
    path = tmp_path / "mapping.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_wish(path)


def test_a_column_that_is_not_there(connection, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("user,item,ts\nu,a,1\n")
    with pytest.raises(InputError, match="column 'id', named as user_id, is missing"):
        load(connection, path, wish=Wish({"user_id": "id"}))
    path.write_text("user,item\n")
    with pytest.raises(InputError, match=r"'occurred_at' is missing.*--map occurred_at=COLUMN"):
        load(connection, path)
    assert count(connection, "loads") == 0


def test_a_preview_reads_and_writes_nothing(tmp_path):
    (tmp_path / "x.csv").write_text("uid,sku,ts,stars\nu,a,1700000000000,4.5\nu,b,x,1\n")
    (found,) = preview(tmp_path / "x.csv")
    assert found.mapping == {
        "user_id": ("uid", "text"),
        "item_id": ("sku", "text"),
        "occurred_at": ("ts", "text, ISO 8601 or unix milliseconds"),
        "value": ("stars", "number"),
        "event_type": ("", "always 'rating'"),
    }
    moment = datetime.fromtimestamp(1_700_000_000, UTC).isoformat()
    assert found.rows == [
        {"user_id": "u", "item_id": "a", "event_type": "rating", "value": 4.5,
         "occurred_at": moment, "event_id": None}
    ]  # fmt: skip
    assert [(row.line, row.column) for row in found.rejects] == [(3, "ts")]
    (sample,) = preview("sample")
    assert (sample.compression, len(sample.rows)) == (".xz", 5)


def test_movielens_100k(connection, tmp_path):
    (tmp_path / "u.data").write_text("196\t1\t3\t881250949\n186\t2\t3\t891717742\n")
    flags = ["0"] * 19
    flags[1] = flags[16] = "1"
    (tmp_path / "u.item").write_bytes(
        b"1|Mis\xe9rables (1995)|01-Jan-1995||http://x|" + "|".join(flags).encode()
        + b"\n2|unknown||||" + "|".join(["1"] + ["0"] * 18).encode() + b"\n"
    )  # fmt: skip
    report = load(connection, tmp_path)
    assert (report.interactions, report.rejected) == (2, 0)
    rows = connection.execute(
        "select title, categories, attributes, extract(epoch from created_at)::int from items"
        " order by item_id"
    ).fetchall()
    assert rows == [
        ("Misérables", ["Action", "Thriller"], {"year": 1995}, 788_918_400),
        ("unknown", [], {}, 891_717_742),
    ]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_items_with_types(connection, tmp_path, kind):
    rows = [
        {"item_id": "a", "title": "Tent", "categories": ["Out", "Sale"], "price": 9.5, "new": True},
        {"item_id": "b", "title": None, "categories": [], "price": None, "new": False},
    ]
    if kind == "jsonl":
        (tmp_path / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "items.parquet")
    (tmp_path / "events.csv").write_text("user_id,item_id,occurred_at\nu,a,1000\n")
    assert load(connection, tmp_path).items == 2
    found = connection.execute("select title, categories, attributes from items order by item_id")
    assert found.fetchall() == [
        ("Tent", ["Out", "Sale"], {"price": 9.5, "new": True}),
        (None, [], {"new": False}),
    ]


def test_json_lines_that_are_wrong(connection, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        b'{"user": 1, "item": "a", "ts": 1000}\n{"user": true, "item": "a", "ts": 1000}\n'
        b'[]\n\n{"user": "\xff", "item": "a", "ts": 1}\n{"item": "a", "ts": 1}\n'
        b'{"user": "u\\u0000", "item": "a", "ts": 1}\n'
    )
    report = load(connection, path)
    assert report.interactions == 1
    assert [(row.line, row.column) for row in report.rejects] == [
        (2, ""), (3, ""), (5, ""), (6, "user"), (7, "user"),
    ]  # fmt: skip
    assert report.rejects[0].reason.startswith("is no JSON object of texts and numbers: ")
    (tmp_path / "y.jsonl").write_text("nothing\n")
    with pytest.raises(InputError, match="no JSON object in the first lines"):
        load(connection, tmp_path / "y.jsonl")


def test_parquet_that_cannot_be_read(connection, tmp_path):
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match="is no whole Parquet file"):
        load(connection, path)
    table = pa.table({"user": [[1]], "item": ["a"], "ts": [1000]})
    pa.parquet.write_table(table, path)
    with pytest.raises(InputError, match="column 'user' is of type list"):
        load(connection, path)


def test_a_column_of_ever_new_texts_is_no_event_type(connection, tmp_path):
    path = tmp_path / "events.csv"
    path.write_text("\n".join([",".join(NAMES), *(f"u,a,t{n},,{n},e{n}" for n in range(1001))]))
    with pytest.raises(InputError, match=r"1,001 event types.*at most 1,000.*--map event_type="):
        load(connection, path)
    assert count(connection, "event_types") <= 1000  # those of the blocks before
    path.write_text("\n".join([",".join(NAMES), *(f"u,a,t{n},,{n},e{n}" for n in range(1000))]))
    load(connection, path)
    assert count(connection, "event_types") == count(connection, "interactions") == 1000
