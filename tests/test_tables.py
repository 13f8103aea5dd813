"""The typed description equals the real database, and says what does not."""

import os
import subprocess
import sys

import pytest
from sqlalchemy import func, select

from features import tables
from features.database import connect
from features.errors import DatabaseUnavailable, SchemaError
from features.schema import apply
from features.spec import names
from features.tables import interactions, item_features, items, users


@pytest.fixture
def change(database_url):
    """Run a statement on a database of its own and return what verify says then."""

    def run(statement):
        with connect(database_url) as connection:
            connection.execute(statement)
        with pytest.raises(SchemaError) as caught:
            tables.verify(tables.engine(database_url))
        return str(caught.value)

    return run


def test_a_fresh_database_is_as_described(database_url):
    tables.verify(tables.engine(database_url))


def test_every_table_and_view_is_described(connection):
    real = connection.execute(
        "select relname from pg_class"
        " where relnamespace = 'shortlist'::regnamespace and relkind in ('r', 'p', 'v')"
        " and not relispartition"
    )
    assert {name for (name,) in real} - {"schema_versions"} == {
        table.name for table in tables.metadata.tables.values()
    }


def test_every_column_is_described(connection):
    for table in tables.metadata.tables.values():
        cursor = connection.execute(f"select * from {table.name} limit 0")
        assert {column.name for column in cursor.description} == set(table.columns.keys())


def test_item_features_of_the_spec_are_columns():
    assert item_features.columns.keys() == ["item_key", *names("item")]


def test_a_missing_column_is_named_and_what_to_do(change):
    said = change("alter table items drop column title")
    assert said == (
        "shortlist.items.title is missing, expected TEXT: restore the tables by hand, or load the"
        " data into an empty database"
    )


def test_a_changed_type(change):
    said = change("alter table interactions alter column event_id type varchar(256)")
    assert "shortlist.interactions.event_id is VARCHAR(256), expected TEXT" in said


def test_types_of_postgresql_alone(change):
    said = change("alter table interactions alter column transaction_id drop not null")
    assert "shortlist.interactions.transaction_id may be null, expected not null" in said


def test_a_column_that_may_be_null_now(change):
    said = change("alter table items alter column categories drop not null")
    assert "shortlist.items.categories may be null, expected not null" in said


def test_a_view_changed_by_hand_is_made_anew_by_what_the_message_says(change, database_url):
    said = change("drop view user_features cascade")
    assert said.startswith("shortlist.user_features is missing: ")
    with connect(database_url) as connection:
        connection.execute(said.split('"')[1])
        connection.commit()
        assert "13_user_features.sql" in apply(connection)
    tables.verify(tables.engine(database_url))


def test_all_that_is_wrong_is_named(change):
    said = change(
        "drop view item_features, user_features; alter table users drop column created_at;"
    )
    assert said.count("is missing") == 3


def test_the_command_fails_with_the_column(change, database_url):
    change("alter table items drop column title")
    done = subprocess.run(
        [sys.executable, "-m", "serve.cli", "db", "apply"],
        env={**os.environ, "SHORTLIST_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "shortlist.items.title is missing, expected TEXT" in done.stderr.replace("\n", " ")


def test_columns_that_a_user_added_do_no_harm(database_url):
    with connect(database_url) as connection:
        connection.execute("alter table items add column margin real")
    tables.verify(tables.engine(database_url))


def test_no_server():
    with pytest.raises(DatabaseUnavailable, match="shortlist db start"):
        tables.verify(tables.engine("postgresql:///x?host=/nowhere"))


def test_the_query_of_the_documentation(shared_sample_url):
    query = (
        select(items.c.title, item_features.c.item_events, func.avg(interactions.c.value))
        .join_from(items, item_features, items.c.item_key == item_features.c.item_key)
        .join(interactions, interactions.c.item_key == items.c.item_key)
        .where(items.c.categories.contains(["Film-Noir"]))
        .group_by(items.c.title, item_features.c.item_events)
        .order_by(item_features.c.item_events.desc())
        .limit(2)
    )
    with tables.engine(shared_sample_url).connect() as connection:
        first, _ = connection.execute(query).all()
        assert connection.scalar(select(func.count()).select_from(users)) == 671
    assert (first.title, first.item_events) == ("L.A. Confidential", 125.0)
    assert 3.5 < first.avg < 4.5
