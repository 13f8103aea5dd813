"""Loading: good rows are kept, each bad one is named, nothing is half written."""

import gzip
import lzma
import time
from datetime import UTC, datetime
from importlib.resources import files

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from load_files import HEADER, count, reasons, write

from features.errors import InputError, SchemaError
from features.ingest.load import load


def test_the_sample(connection):
    steps = []
    report = load(connection, "sample", progress=lambda *step: steps.append(step))
    assert (report.users, report.items, report.interactions) == (671, 9066, 100_004)
    assert (report.rejected, report.already_loaded, report.shifted_days) == (0, 0, 0)
    assert {name for name, _, _ in steps} == {"items", "interactions"}
    assert all(0 <= done <= total for _, done, total in steps)
    assert steps[-1][1] == steps[-1][2]
    rows = connection.execute(
        "select event_type, count(*), min(value), max(value)"
        " from interactions inner join event_types using (event_type_key) group by 1"
    ).fetchall()
    assert rows == [("rating", 100_004, 0.5, 5.0)]
    late = "select count(*) from items inner join interactions using (item_key)"
    assert connection.execute(f"{late} where created_at > occurred_at").fetchone() == (0,)
    assert connection.execute("select count(*) from items where created_at is null").fetchone() == (
        0,
    )
    story = connection.execute(
        "select title, categories, attributes, created_at from items where item_id = '1'"
    ).fetchone()
    assert story == (
        "Toy Story",
        ["Adventure", "Animation", "Children", "Comedy", "Fantasy"],
        {"year": 1995},
        datetime(1995, 1, 1, tzinfo=UTC),
    )
    untitled = "select count(*) from items where title is null and attributes = '{}'"
    assert connection.execute(untitled).fetchone() == (5,)
    again = load(connection, "sample")
    assert (again.users, again.items, again.interactions) == (0, 0, 0)
    assert again.already_loaded == 100_004


def test_rebased_to_now(connection, tmp_path):
    (tmp_path / "movies.csv").write_text("movieId,title,year,genres\n7,Old,1995,Drama\n")
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,7,4,1000000000\n1,7,3,1000000777\n"
    )
    before = time.time()
    report = load(connection, tmp_path, rebase_to_now=True)
    oldest, newest, created, attributes = connection.execute(
        "select extract(epoch from min(occurred_at))::float8,"
        " extract(epoch from max(occurred_at))::float8,"
        " extract(epoch from min(items.created_at))::float8, min(attributes::text)"
        " from interactions inner join items using (item_key)"
    ).fetchone()
    shift = report.shifted_days * 86_400
    assert before - 86_400 <= newest <= time.time()
    assert (oldest, newest) == (1_000_000_000 + shift, 1_000_000_777 + shift)
    assert created == datetime(1995, 1, 1, tzinfo=UTC).timestamp() + shift
    assert attributes == '{"year": 1995}'


def test_rows_of_the_same_second_keep_their_order(connection, tmp_path):
    rows = "".join(f"u,i{n},view,,1000\n" for n in (3, 1, 2))
    load(connection, write(tmp_path, HEADER + rows))
    found = connection.execute(
        "select item_id from interactions inner join items using (item_key)"
        " order by occurred_at, interaction_id"
    ).fetchall()
    assert found == [("i3",), ("i1",), ("i2",)]


BAD_ROWS = {
    "u,i,view,x,1000": ("value", "'x' is not a number"),
    "u,i,view,nan,1000": ("value", "'nan' is not a finite 32-bit number"),
    "u,i,view,-inf,1000": ("value", "'-inf' is not a finite 32-bit number"),
    "u,i,view,1e39,1000": ("value", "'1e39' is not a finite 32-bit number"),
    "u,i,view,1,-5": ("occurred_at", "'-5' lies before 1970"),
    "u,i,view,1,nan": ("occurred_at", "'nan' is no time of the years 1 to 9999"),
    "u,i,view,1,": ("occurred_at", "'' is not a time: expected unix seconds or ISO 8601"),
    "u,i,view,1,99999999999": ("occurred_at", "'99999999999' lies in the future"),
    "u,i,view,1,1700000000000": (
        "occurred_at",
        "'1700000000000' is no time of the years 1 to 9999 (milliseconds? expected seconds)",
    ),
    "u,i,view,1,tomorrow": (
        "occurred_at",
        "'tomorrow' is not a time: expected unix seconds or ISO 8601",
    ),
    "u,i,view,1_000,1000": ("value", "'1_000' is not a number"),
    "u,i,view,1,1e308": (
        "occurred_at",
        "'1e308' is no time of the years 1 to 9999 (milliseconds? expected seconds)",
    ),
    ",i,view,1,1000": ("user_id", "is empty"),
    "u,,view,1,1000": ("item_id", "is empty"),
    f"u,{'x' * 10_000},view,1,1000": (
        "item_id",
        "has 10000 characters, at most 256 are allowed",
    ),
    "u\0,i,view,1,1000": ("user_id", "contains the character NUL"),
    "u,i,view,1": ("", "has 4 fields, expected 5"),
    "u,i,view,1,1000,more": ("", "has 6 fields, expected 5"),
    'u,"i,view,1,1000': ("", "broken quotes: unexpected end of data"),
    f"u,i,{'t' * 65},1,1000": ("event_type", "has 65 characters, at most 64 are allowed"),
}


def test_every_bad_row_is_named_and_every_good_one_kept(connection, tmp_path):
    good = "good,item,view,1.5,1000\n"
    text = HEADER + good + "".join(row + "\n" for row in BAD_ROWS) + "good,item,buy,,2000\n"
    report = load(connection, write(tmp_path, text))
    assert report.interactions == 2
    assert report.rejected == len(BAD_ROWS)
    expected = [
        ("interactions.csv", line, column, reason)
        for line, (column, reason) in enumerate(BAD_ROWS.values(), start=3)
    ]
    assert reasons(report) == expected
    assert count(connection, "users") == count(connection, "items") == 1


def test_a_value_too_small_for_32_bits_is_nothing(connection, tmp_path):
    report = load(connection, write(tmp_path, HEADER + "u,i,view,1e-60,1000\n"))
    assert report.rejected == 0
    assert connection.execute("select value from interactions").fetchall() == [(0.0,)]


def test_bytes_that_are_not_utf_8(connection, tmp_path):
    text = HEADER.encode() + b"caf\xe9,i,view,1,1000\n" + "café,i,view,1,1000\n".encode()
    report = load(connection, write(tmp_path, text))
    assert report.interactions == 1
    assert reasons(report) == [
        ("interactions.csv", 2, "user_id", "contains bytes that are not UTF-8")
    ]


def test_windows_line_ends_byte_order_mark_blank_lines_and_column_order(connection, tmp_path):
    text = "\ufeffoccurred_at,item_id,user_id\r\n1000,i,u\r\n\r\n2024-01-02T03:04:05Z,i,u\r\n"
    report = load(connection, write(tmp_path, text))
    assert (report.interactions, report.rejected) == (2, 0)
    found = connection.execute(
        "select occurred_at, event_type"
        " from interactions inner join event_types using (event_type_key)"
    ).fetchall()
    assert found[1] == (datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC), "interaction")


def test_strange_but_good_ids(connection, tmp_path):
    ids = ['say ""hi""', "a,b", "🎬", "o'neill; drop table users", "%s", "\\N", "{}", "\t"]
    text = HEADER + "".join(f'"{user_id}",i,view,1,1000\n' for user_id in ids)
    report = load(connection, write(tmp_path, text))
    assert (report.users, report.rejected) == (len(ids), 0)
    stored = {row[0] for row in connection.execute("select user_id from users")}
    assert stored == {user_id.replace('""', '"') for user_id in ids}


def test_duplicates_in_the_file_and_in_the_database(connection, tmp_path):
    text = (
        "user_id,item_id,occurred_at,event_id\n"
        "u,i,1000,a\nu,i,1000,b\nu,i,2000,a\nu,i,3000,c\nu,j,3000,\nu,j,3000,\n"
    )
    report = load(connection, write(tmp_path, text))
    assert report.interactions == 4
    assert [row.line for row in report.rejects] == [4, 7]
    assert {row.reason for row in report.rejects} == {"says the same as an earlier line"}
    again = load(connection, write(tmp_path, text + "u,i,9000,c\nu,i,4000,d\n"))
    assert (again.interactions, again.already_loaded) == (1, 4)


@pytest.mark.parametrize(
    ("interactions", "message"),
    [
        ("", r"interactions\.csv line 1: the file is empty, expected .* user_id, item_id"),
        ("\n", "the file is empty"),
        ("user_id,item_id\nu,i\n", "column 'occurred_at' is missing, found 'user_id, item_id'"),
        ("user_id;item_id;occurred_at\n", "column 'user_id' is missing"),
        (HEADER.replace("event_type", "value"), "column 4, 'value', stands on an earlier column"),
        (b"user_id,item_id,occurred_at,caf\xe9\n", "column 4, .* bytes that are not UTF-8"),
        (HEADER.encode("utf-16"), r"interactions\.csv line 1: column 1, .* in UTF-8"),
    ],
)
def test_a_file_without_its_columns(connection, tmp_path, interactions, message):
    with pytest.raises(InputError, match=message):
        load(connection, write(tmp_path, interactions, "item_id,title\ni,Item\n"))
    assert count(connection, "items") == 0


def test_a_header_and_no_rows(connection, tmp_path):
    report = load(connection, write(tmp_path, HEADER, "item_id\n"), rebase_to_now=True)
    assert (report.users, report.items, report.interactions, report.rejected) == (0, 0, 0, 0)


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed(connection, tmp_path, ending, pack):
    data = pack((HEADER + "u,i,view,1,1000\n").encode())
    (tmp_path / f"interactions.csv{ending}").write_bytes(data)
    assert load(connection, tmp_path).interactions == 1
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / f"interactions.csv{ending}").write_bytes(data[: len(data) - 9])
    with pytest.raises(InputError, match="the compressed file is damaged"):
        load(connection, damaged)


def test_movielens_as_published_with_the_year_in_the_title(connection, tmp_path):
    (tmp_path / "movies.csv").write_text(
        'movieId,title,genres\n1,"Twelve (12) Monkeys (a.k.a. X) (1995)",Sci-Fi|Thriller\n'
        "2,No Year,(no genres listed)\n"
    )
    (tmp_path / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n1,1,4.0,900000000\n1,2,,900000001\n"
    )
    report = load(connection, tmp_path)
    assert reasons(report) == [("ratings.csv", 3, "rating", "is empty")]
    rows = connection.execute("select title, categories, attributes from items").fetchall()
    assert rows == [
        ("Twelve (12) Monkeys (a.k.a. X)", ["Sci-Fi", "Thriller"], {"year": 1995}),
        ("No Year", [], {}),
    ]


def test_ml_1m(connection, tmp_path):
    (tmp_path / "movies.dat").write_bytes(
        b"1::Toy Story (1995)::Animation|Children's\n73::Mis\xe9rables, Les (1995)::Drama\n"
    )
    (tmp_path / "ratings.dat").write_text("1::1::5::978300760\n1::73::3::978302109\n1::1::x\n")
    report = load(connection, tmp_path)
    assert reasons(report) == [("ratings.dat", 3, "", "has 3 fields, expected 4")]
    assert report.interactions == 2
    titles = connection.execute("select title from items order by item_key").fetchall()
    assert titles == [("Toy Story",), ("Misérables, Les",)]


def test_a_file_instead_of_a_folder(connection, tmp_path):
    path = tmp_path / "clicks.csv"
    path.write_text(HEADER + "u,i,click,,1000\n")
    assert load(connection, path).interactions == 1


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_no_source(connection, tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no such file.*leave it out|expected one of ratings"):
        load(connection, tmp_path / name)


def test_without_a_schema(bare_url, tmp_path):
    from features.database import connect

    with connect(bare_url) as bare, pytest.raises(SchemaError, match="shortlist db apply"):
        load(bare, write(tmp_path, HEADER + "u,i,view,1,1000\n"))


FIELD = st.text(st.characters(exclude_characters="\r\n"), max_size=12)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(rows=st.lists(st.lists(FIELD, min_size=1, max_size=6).map(",".join), max_size=8))
def test_any_text_is_counted(connection, tmp_path, rows):
    lines = [row.encode("utf-8", "surrogatepass") for row in [*rows, "u,i,view,1,1000"]]
    source = write(tmp_path / "any", HEADER.encode() + b"\n".join(lines))
    with connection.transaction(force_rollback=True):
        report = load(connection, source)
        assert report.interactions >= 1
        assert report.interactions + report.rejected == sum(map(bool, rows)) + 1
        assert count(connection, "interactions") == report.interactions


def test_the_sample_is_small_and_says_its_terms():
    folder = files("features") / "sample"
    assert sum(len(entry.read_bytes()) for entry in folder.iterdir()) < 1_000_000
    terms = (folder / "TERMS.md").read_text(encoding="utf-8")
    assert "10.1145/2827872" in terms
    assert "Not for commercial use" in terms
