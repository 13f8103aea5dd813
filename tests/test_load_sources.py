"""Tables of the user that are read again and again: what is new comes in, and only that."""

import pytest
from load_files import count

from features.database import connect
from features.erasure import erase_user
from features.errors import InputError
from features.ingest.mapping import Wish
from features.ingest.sources import list_sources, remove_source
from features.ingest.tables import follow, load_table
from features.refresh import checks
from features.retention import drop_raw_events

CREATE = """
create table public.orders (
    id bigint generated always as identity primary key, buyer text, sku text,
    paid timestamptz not null default now(), made timestamptz default now()
)
"""
WISH = Wish({"user_id": "buyer", "occurred_at": "paid"}, event_type="purchase")


@pytest.fixture
def orders(connection):
    connection.execute(CREATE)
    connection.commit()
    return connection


@pytest.fixture
def other(orders, database_url):
    with connect(database_url) as found:
        yield found


def buy(connection, *buyers, sku="a", at="now()"):
    for buyer in buyers:
        connection.execute(
            f"insert into public.orders (buyer, sku, paid) values (%s, %s, {at})", (buyer, sku)
        )


def buyers(connection):
    with connection.transaction():
        rows = connection.execute(
            "select user_id from interactions inner join users using (user_key) order by user_id"
        ).fetchall()
    return "".join(name for (name,) in rows)


def test_the_mapping_is_kept_as_a_view(orders):
    buy(orders, "u")
    orders.commit()
    load_table(orders, "public.orders", None, WISH)
    buy(orders, "v", sku="b")
    orders.commit()
    assert load_table(orders, "public.orders").interactions == 1
    assert orders.execute(
        "select user_id, item_id, event_type, value from source_public_orders order by user_id"
    ).fetchall() == [("u", "a", "purchase", None), ("v", "b", "purchase", None)]
    (source,) = list_sources(orders)
    assert (source.events, source.wish, source.increasing) == ("public.orders", WISH, None)
    remove_source(orders, "public.orders")
    assert list_sources(orders) == []
    assert orders.execute("select to_regclass('source_public_orders')").fetchone() == (None,)
    assert buyers(orders) == "uv"
    with pytest.raises(InputError, match=r"'public\.orders': there is none"):
        remove_source(orders, "public.orders")


def test_another_mapping_replaces_the_first_and_reads_all_again(orders):
    orders.execute("alter table public.orders add column ms bigint default 1000")
    buy(orders, "u")
    orders.commit()
    load_table(orders, "public.orders", None, WISH, increasing="id")
    assert load_table(orders, "public.orders").read == 1
    seconds = Wish({"occurred_at": "ms"}, time_unit="ms")
    assert load_table(orders, "public.orders", None, seconds).interactions == 1
    assert orders.execute(
        "select extract(epoch from min(occurred_at))::int from interactions"
    ).fetchone() == (1,)
    (source,) = list_sources(orders)
    assert source.wish.columns == {"user_id": "buyer", "occurred_at": "ms"}


def test_a_table_that_was_made_anew_is_read_anew(orders):
    buy(orders, "u")
    orders.commit()
    load_table(orders, "public.orders", None, WISH, increasing="id")
    orders.execute("drop table public.orders cascade")
    orders.commit()
    (failed,) = follow(orders)
    assert isinstance(failed, InputError)
    with pytest.raises(InputError, match="there is none in this database"):
        load_table(orders, "public.orders")
    orders.execute(CREATE)
    buy(orders, "v")
    orders.commit()
    assert load_table(orders, "public.orders").interactions == 1


@pytest.mark.parametrize("column", ["id", "paid"])
def test_only_rows_that_may_be_new_are_read(orders, column):
    buy(orders, "a", "b", "c", at="now() - interval '1 day'")
    orders.commit()
    first = load_table(orders, "public.orders", None, WISH, increasing=column)
    assert (first.read, first.interactions) == (3, 3)
    buy(orders, "d")
    orders.commit()
    # That the highest row is read again costs one row.
    assert [load_table(orders, "public.orders").read for _ in range(2)] == [
        4 if column == "paid" else 2, 1,
    ]  # fmt: skip
    assert buyers(orders) == "abcd"


def test_a_row_that_is_committed_late_is_not_lost(orders, other):
    buy(other, "late")
    buy(orders, "x")
    orders.commit()
    load_table(orders, "public.orders", None, WISH, increasing="id")
    assert buyers(orders) == "x"
    buy(orders, "y")
    orders.commit()
    # Still running: the next pass reads from the start, and stores no row twice.
    assert load_table(orders, "public.orders").read == 2
    other.commit()
    assert load_table(orders, "public.orders").read == 3
    assert buyers(orders) == "latexy"
    assert load_table(orders, "public.orders").read == 1


def test_a_transaction_that_took_its_number_long_before_it_wrote_is_not_lost(orders, other):
    """It has no transaction id when the pass looks: no snapshot shows it."""
    buy(orders, "x")
    orders.commit()
    (number, known) = other.execute(
        "select nextval(pg_get_serial_sequence('public.orders', 'id')),"
        " pg_current_xact_id_if_assigned()"
    ).fetchone()
    assert (number, known) == (2, None)
    buy(orders, "y")
    orders.commit()
    assert load_table(orders, "public.orders", None, WISH, increasing="id").read == 2
    other.execute(
        "insert into public.orders (id, buyer, sku) overriding system value values (2, 'l', 'a')"
    )
    other.commit()
    load_table(orders, "public.orders")
    assert buyers(orders) == "lxy"


def test_other_transactions_that_always_run_delay_no_source_for_ever(orders, other, database_url):
    """Each pass meets another one; the third pass knows that the one of the first has ended."""
    buy(orders, "a", "b")
    orders.commit()
    other.execute("select now()")
    load_table(orders, "public.orders", None, WISH, increasing="id")
    buy(orders, "c")
    orders.commit()
    with connect(database_url) as third:
        third.execute("select now()")
        other.commit()
        assert load_table(orders, "public.orders").read == 3
        buy(orders, "d")
        orders.commit()
        assert load_table(orders, "public.orders").read == 3
    assert load_table(orders, "public.orders").read == 3
    assert load_table(orders, "public.orders").read == 1
    assert buyers(orders) == "abcd"


def test_a_time_of_the_far_future_hides_nothing(orders):
    buy(orders, "a")
    buy(orders, "f", at="now() + interval '900 years'")
    orders.commit()
    report = load_table(orders, "public.orders", None, WISH, increasing="paid")
    assert report.reasons == {"the time lies in the future": 1}
    buy(orders, "b")
    orders.commit()
    assert load_table(orders, "public.orders").interactions == 1


@pytest.mark.parametrize("increasing", [None, "id"])
def test_who_was_erased_does_not_come_back_from_the_source(orders, increasing):
    buy(orders, "u", "e")
    orders.commit()
    load_table(orders, "public.orders", None, WISH, increasing=increasing)
    erase_user(orders, "e")
    # As if it were long ago: a later erasure clears old hashes away, but for sources.
    orders.execute(
        "update erasures set erased_at = erased_at - interval '40 days';"
        "update public.orders set paid = paid - interval '40 days' where buyer = 'e'"
    )
    orders.commit()
    erase_user(orders, "somebody else")
    report = load_table(orders, "public.orders")
    assert (report.interactions, report.users, report.left_out) == (0, 0, 1)
    assert buyers(orders) == "u"
    # What the person does after that is new.
    buy(orders, "e")
    orders.commit()
    assert load_table(orders, "public.orders").interactions == 1
    assert buyers(orders) == "eu"


def test_what_was_dropped_after_some_days_is_not_counted_again(orders):
    buy(orders, "o", at="now() - interval '200 days'")
    buy(orders, "u")
    orders.commit()
    load_table(orders, "public.orders", None, WISH)
    drop_raw_events(orders, 100)
    assert buyers(orders) == "u"
    report = load_table(orders, "public.orders")
    assert (report.interactions, report.left_out) == (0, 1)
    assert buyers(orders) == "u"
    assert [row for row in checks(orders) if not row.passed] == []


@pytest.mark.parametrize(
    ("create", "increasing", "message"),
    [
        ("create table public.t ({})", "no", "'no', named by --increasing, is missing"),
        ("create table public.t ({}, x text)", "x", "is of type text, expected one of whole"),
        ("create materialized view public.t as select 1 as user_id, 1 as item_id, now() as ts, 1 x",
         "x", "a materialized view or a foreign table"),
        ("create table public.t ({}, x numeric); insert into public.t values (1, 1, now(), 'nan')",
         "x", "holds NaN"),
    ],
)  # fmt: skip
def test_a_column_that_cannot_grow_is_refused(connection, create, increasing, message):
    connection.execute(create.format("user_id int, item_id int, ts timestamptz"))
    connection.commit()
    with pytest.raises(InputError, match=message):
        load_table(connection, "public.t", increasing=increasing)
    assert count(connection, "interactions") == 0


def test_numbers_as_times_need_a_row_or_a_unit(connection):
    connection.execute("create table public.t (user_id int, item_id int, ts bigint)")
    connection.commit()
    with pytest.raises(InputError, match="no row tells the unit of 'ts': add --time-unit"):
        load_table(connection, "public.t")
    assert load_table(connection, "public.t", None, Wish(time_unit="ms")).read == 0


def test_two_tables_whose_views_would_have_one_name(connection):
    for name in ('"a b"', "a_b"):
        connection.execute(f"create table public.{name} (user_id int, item_id int, ts timestamp)")
    connection.commit()
    load_table(connection, "public.a b")
    with pytest.raises(InputError, match=r"the view 'source_public_a_b' belongs to another"):
        load_table(connection, "public.a_b")


def test_a_number_is_one_id_however_many_zeros_follow(connection):
    connection.execute(
        "create table public.t (user_id numeric, item_id float8, ts int, event_id numeric);"
        "insert into public.t values (1.50, 3, 1, 1.0), (1.5, 3, 2, 2), (2, 3, 3, 1)"
    )
    connection.commit()
    assert load_table(connection, "public.t").interactions == 2
    rows = connection.execute("select user_id from users order by user_id").fetchall()
    assert [row[0] for row in rows] == ["1.5", "2"]


def test_followed_are_the_sources_that_grow(orders, database_url):
    buy(orders, "a")
    orders.execute(
        "create table public.all_again as select buyer as user_id, sku as item_id, paid as ts from"
        " public.orders; create table public.bad (user_id int, item_id int, ts text, n int)"
    )
    orders.commit()
    load_table(orders, "public.all_again")
    load_table(orders, "public.orders", None, WISH, increasing="id")
    buy(orders, "b")
    orders.execute("insert into public.all_again values ('c', 'c', now())")
    orders.commit()
    (report,) = follow(orders)
    assert (report.source, report.interactions) == ("public.orders", 1)
    assert buyers(orders) == "aab"
    with connect(database_url) as busy:
        busy.execute("select pg_advisory_lock(hashtextextended('shortlist.sources', 0))")
        assert follow(orders) == []
