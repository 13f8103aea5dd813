"""Loading from tables that are in the database already."""

import pytest
from load_files import count

from features.errors import InputError
from features.ingest.mapping import Wish
from features.ingest.tables import load_table

ROWS = """
create table public.orders (who int, sku text, at {time}, stars numeric, kind text, ref uuid);
insert into public.orders values
    (1, 'a', {first}, 4.5, 'buy', null), (1, 'a', {first}, 4.5, 'buy', null),
    (2, 'b', {second}, null, '', '00000000-0000-0000-0000-000000000001'),
    (3, '', {first}, 1, 'buy', null), (4, 'c', null, 1, 'buy', null),
    (null, 'c', {first}, 1, 'buy', null), (5, 'c', {first}, 'nan', 'buy', null)
"""
WISH = Wish(
    {"user_id": "who", "occurred_at": "at", "event_type": "kind", "event_id": "ref"}
    | {"value": "stars"}
)
TIMES = {
    "timestamptz": ("'2020-01-02 03:04:05+00'", "'2020-01-02 03:04:06.5+00'"),
    "timestamp": ("'2020-01-02 03:04:05'", "'2020-01-02 03:04:06.5'"),
    "bigint": ("1577934245000", "1577934246500"),
    "double precision": ("1577934245", "1577934246.5"),
}


def stored(connection):
    return connection.execute(
        "select user_id, item_id, event_type, value, extract(epoch from occurred_at)::float8,"
        " event_id from shortlist.interactions inner join shortlist.users using (user_key)"
        " inner join shortlist.items using (item_key)"
        " inner join shortlist.event_types using (event_type_key) order by occurred_at, user_id"
    ).fetchall()


@pytest.mark.parametrize("time", TIMES)
def test_a_table_with_columns_of_its_own(connection, time):
    first, second = TIMES[time]
    connection.execute(ROWS.format(time=time, first=first, second=second))
    connection.commit()
    report = load_table(connection, "public.orders", None, WISH)
    assert (report.users, report.items, report.interactions, report.rejected) == (2, 2, 2, 4)
    expected = [
        ("1", "a", "buy", 4.5, 1577934245.0, None),
        ("2", "b", "rating", None, 1577934246.5, "00000000-0000-0000-0000-000000000001"),
    ]
    assert stored(connection) == expected
    connection.execute(f"insert into public.orders values (1, 'd', {second}, 2, 'buy', null)")
    connection.commit()
    again = load_table(connection, "public.orders", None, WISH)
    assert (again.users, again.items, again.interactions) == (0, 1, 1)
    assert stored(connection) == [
        expected[0], ("1", "d", "buy", 2.0, 1577934246.5, None), expected[1],
    ]  # fmt: skip
    assert load_table(connection, "public.orders", None, WISH).interactions == 0


def test_items_of_a_table(connection):
    connection.execute(
        "create table public.goods (item_id int, name text, created_at timestamptz);"
        "insert into public.goods values (1, 'Tent', '2020-01-01'), (2, 'Rope', '1990-01-01');"
        "create table public.views (user_id text, item_id int, ts int);"
        "insert into public.views values ('u', 1, 1000), ('u', 3, 1000), ('v', 2, 1577934245)"
    )
    connection.commit()
    report = load_table(connection, "public.views", "public.goods", Wish())
    assert (report.items, report.interactions) == (2, 2)
    rows = connection.execute(
        "select item_id, title, extract(epoch from created_at)::int from items order by item_id"
    ).fetchall()
    assert rows == [("1", "Tent", 1000), ("2", "Rope", 631_152_000)]


def test_events_of_items_that_are_in_no_table_are_counted_as_rejected(connection):
    connection.execute(
        "create table public.goods (item_id int); insert into public.goods values (1);"
        "create table public.views (user_id text, item_id int, ts int);"
        "insert into public.views values ('u', 1, 1000), ('u', 3, 1000), ('w', 3, 2000)"
    )
    connection.commit()
    report = load_table(connection, "public.views", "public.goods", Wish())
    assert (report.interactions, report.rejected) == (1, 2)
    assert report.reasons == {"there is no such item": 2}


def test_the_name_of_a_table_is_taken_letter_by_letter(connection):
    connection.execute(
        'create table public."Views" (user_id text, item_id int, ts int);'
        "create table public.views (a int);"
        "insert into public.\"Views\" values ('u', 1, 1000)"
    )
    connection.commit()
    assert load_table(connection, "public.Views", None, Wish()).interactions == 1
    with pytest.raises(InputError, match="there is none in this database"):
        load_table(connection, "public.VIEWS", None, Wish())


@pytest.mark.parametrize(
    ("create", "message"),
    [
        ("select 1", "there is none in this database"),
        ("create table public.t (user_id int, item_id int)", "column 'occurred_at' is missing"),
        ("create table public.t (user_id int, item_id int, ts text)", "'ts' is of type text"),
    ],
)
def test_a_table_that_does_not_fit(connection, create, message):
    connection.execute(create)
    connection.commit()
    with pytest.raises(InputError, match=message):
        load_table(connection, "public.t", None, Wish())
    assert count(connection, "interactions") == 0


def test_a_column_of_ever_new_texts_is_no_event_type(connection):
    connection.execute(
        "create table public.t as select 'u' as user_id, 1 as item_id, n as ts, 't' || n as event"
        " from generate_series(1, 1001) as n"
    )
    connection.commit()
    with pytest.raises(InputError, match=r"1,001 event types.*at most 1,000"):
        load_table(connection, "public.t", None, Wish())
    assert count(connection, "event_types") == 0
