"""Files of items: the limits of the HTTP interface, years, what changes and what stays."""

from load_files import HEADER, count, reasons, write

from features.ingest.load import load
from features.refresh import refresh


def test_items_of_a_csv(connection, tmp_path):
    items = (
        "item_id,title,categories,price,color,stock,created_at\n"
        'a,"Tent, ""large""",Outdoor|Sale|Outdoor,99.5,green,true,1000\n'
        'b,"two\nlines",,,,,\n'
        "c,,,NaN,,,2030-13-01\n"
        'd,"open quote,,1,,,\n'
        "a,again,,,,,\n"
        "e,Last,,1,,,\n"
    )
    text = HEADER + "u,a,view,1,500\nu,zzz,view,1,600\n"
    report = load(connection, write(tmp_path, text, items))
    assert reasons(report) == [
        ("items.csv", 5, "created_at", "'2030-13-01' is not a time: expected unix seconds or"
         " ISO 8601"),
        ("items.csv", 6, "", "broken quotes: unexpected end of data"),
        ("items.csv", 7, "", "'a' stands on an earlier line too"),
        ("interactions.csv", 3, "item", "item 'zzz' is neither in items.csv nor in the database"),
    ]  # fmt: skip
    rows = connection.execute(
        "select item_id, title, categories, attributes, extract(epoch from created_at)::int"
        " from items order by item_id"
    ).fetchall()
    assert rows == [
        ("a", 'Tent, "large"', ["Outdoor", "Sale"],
         {"price": 99.5, "color": "green", "stock": True}, 500),
        ("b", "two\nlines", [], {}, None),
        ("e", "Last", [], {"price": 1}, None),
    ]  # fmt: skip


BAD_ITEMS = {
    "x,{},,".format("t" * 1001): ("title", "has 1001 characters, at most 1000 are allowed"),
    "x,,{},".format("c" * 257): (
        "categories",
        "a name has 257 characters, at most 256 are allowed",
    ),
    "x,,{},".format("|".join(map(str, range(101)))): (
        "categories",
        "has 101 names, at most 100 are allowed",
    ),
    "x,,,{}".format("a" * 10_001): ("note", "has 10001 characters, at most 10000 are allowed"),
    "x,,,a\0b": ("note", "contains the character NUL"),
}


def test_an_item_has_the_same_limits_in_a_file_as_over_http(connection, tmp_path):
    items = "item_id,title,categories,note\n" + "".join(f"{row}\n" for row in BAD_ITEMS)
    report = load(connection, write(tmp_path, HEADER, items))
    assert [(row.column, row.reason) for row in report.rejects] == list(BAD_ITEMS.values())
    assert count(connection, "items") == 0


def test_the_longest_categories_can_be_refreshed(connection, tmp_path):
    names = [f"{number:04}" + "🎬" * 252 for number in range(100)]
    items = "item_id,categories\ni," + "|".join(names) + "\n"
    load(connection, write(tmp_path, HEADER + "u,i,view,1,1000\n", items))
    refresh(connection)
    assert count(connection, "user_category_totals") == 100


def test_numbers_that_are_too_large_stay_text(connection, tmp_path):
    items = "item_id,n\na," + "9" * 400 + "\nb," + "9" * 5000 + "\nc,1e999\nd,[[1]]\ne,1e300\n"
    load(connection, write(tmp_path, HEADER, items))
    query = "select jsonb_typeof(attributes -> 'n') from items order by item_id"
    assert [kind for (kind,) in connection.execute(query)] == ["string"] * 4 + ["number"]


def test_items_older_than_1970_and_of_tomorrow(connection, tmp_path):
    items = "item_id,created_at\nold,1866-01-01\nsoon,2090-01-01\nnever,10000-01-01\n"
    report = load(connection, write(tmp_path, HEADER, items))
    assert [(row.line, row.column) for row in report.rejects] == [(4, "created_at")]
    found = connection.execute("select extract(year from created_at)::int from items order by 1")
    assert found.fetchall() == [(1866,), (2090,)]


def test_a_column_without_a_name_is_nothing(connection, tmp_path):
    load(connection, write(tmp_path, HEADER, ",item_id,title,\n0,a,Tent,x\n"))
    found = connection.execute("select item_id, title, attributes from items").fetchall()
    assert found == [("a", "Tent", {})]


def test_years_that_are_none(connection, tmp_path):
    (tmp_path / "ratings.csv").write_text("userId,movieId,rating,timestamp\n")
    movies = tmp_path / "movies.csv"
    movies.write_text(f"movieId,title,genres,year\n1,A,x,0\n2,B,x,{'9' * 5000}\n3,C,x,\n")
    assert [(row.line, row.column) for row in load(connection, tmp_path).rejects] == [
        (2, "year"), (3, "year"),
    ]  # fmt: skip
    movies.write_text("movieId,title,genres\n4,D (0000),x\n")
    load(connection, tmp_path)
    titles = connection.execute("select title from items order by item_id").fetchall()
    assert titles == [("C",), ("D (0000)",)]


def test_a_changed_item_is_updated_and_nothing_else_touched(connection, tmp_path):
    items = "item_id,title\na,One\nb,Two\n"
    load(connection, write(tmp_path, HEADER, items))
    before = dict(connection.execute("select item_id, change_id from items").fetchall())
    report = load(connection, write(tmp_path, HEADER, items.replace("Two", "Three")))
    after = dict(connection.execute("select item_id, change_id from items").fetchall())
    assert report.items == 1
    assert before["a"] == after["a"]
    assert before["b"] < after["b"]
