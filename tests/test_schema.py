"""The schema: applied once, refused when a table file changed, safe at the same time."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from features.database import connect
from features.errors import SchemaError
from features.schema import SqlFile, apply, sql_files


def objects(connection):
    """Return every object of the schema with its internal number, which a re-creation changes."""
    return connection.execute(
        "select oid, relname from pg_class"
        " where relnamespace = 'shortlist'::regnamespace and relkind in ('r', 'm', 'v', 'i')"
        " order by relname"
    ).fetchall()


def changed(files, name, text):
    return [replace(file, text=text(file.text)) if file.name == name else file for file in files]


def test_second_apply_changes_nothing(bare_url):
    with connect(bare_url) as connection:
        assert apply(connection)[0] == "01_tables.sql"
        before = objects(connection)
        versions = connection.execute("select * from schema_versions order by name").fetchall()
        assert apply(connection) == []
        assert objects(connection) == before
        again = connection.execute("select * from schema_versions order by name").fetchall()
        assert again == versions


def test_every_file_but_the_first_and_the_checks_is_recorded(connection):
    names = {name for (name,) in connection.execute("select name from schema_versions")}
    assert names == {file.name for file in sql_files() if "00" < file.name[:2] < "99"}


def test_file_names_are_unique_numbers():
    numbers = [file.name[:2] for file in sql_files()]
    assert len(set(numbers)) == len(numbers)
    assert all(number.isdecimal() for number in numbers)
    assert all(file.text.startswith("-- Purpose: ") for file in sql_files())


def test_a_changed_table_file_is_refused(connection):
    files = changed(sql_files(), "01_tables.sql", lambda text: text + "\n-- new\n")
    with pytest.raises(SchemaError, match=r"01_tables\.sql changed after it was applied"):
        apply(connection, files)
    assert apply(connection) == []


def test_a_changed_view_is_made_anew_with_what_follows(connection):
    files = changed(sql_files(), "13_user_features.sql", lambda text: text + "\n-- new\n")
    names = [file.name for file in files if "13" <= file.name[:2] < "99"]
    before = dict(map(reversed, objects(connection)))
    assert apply(connection, files) == names
    after = dict(map(reversed, objects(connection)))
    assert after.keys() == before.keys()
    assert after["user_features"] != before["user_features"]
    assert after["item_features"] == before["item_features"]
    assert apply(connection, files) == []


def test_a_new_table_file_is_added(connection):
    added = SqlFile("09_notes.sql", "create table notes (note text);")
    assert apply(connection, [*sql_files(), added]) == ["09_notes.sql"]
    assert connection.execute("select count(*) from notes").fetchone() == (0,)


def test_a_database_of_a_newer_version_is_refused(connection):
    added = SqlFile("09_notes.sql", "create table notes (note text);")
    apply(connection, [*sql_files(), added])
    with pytest.raises(SchemaError, match=r"'09_notes\.sql' applied, which this version"):
        apply(connection)


def test_a_view_file_that_is_gone_is_forgotten(connection):
    added = SqlFile("90_extra.sql", "create or replace view extra as select 1 as one;")
    assert apply(connection, [*sql_files(), added]) == ["90_extra.sql"]
    assert apply(connection) == []
    names = {name for (name,) in connection.execute("select name from schema_versions")}
    assert "90_extra.sql" not in names


def test_a_failure_leaves_nothing_behind(bare_url):
    broken = changed(sql_files(), "21_as_of.sql", lambda text: text + "\nselect 1 / 0;")
    with connect(bare_url) as connection:
        with pytest.raises(Exception, match="division by zero"):
            apply(connection, broken)
        row = connection.execute("select to_regnamespace('shortlist') is null").fetchone()
        assert row == (True,)
        assert apply(connection)


def test_applies_at_the_same_time(bare_url):
    def one(_):
        with connect(bare_url) as connection:
            return apply(connection)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(4)))
    assert sorted(map(bool, results)) == [False, False, False, True]


def test_a_view_that_changed_keeps_its_rows(sample_url):
    files = changed(sql_files(), "11_daily.sql", lambda text: text + "\n-- new\n")
    with connect(sample_url) as connection:
        before = connection.execute("select sum(item_events) from item_features").fetchone()
        assert "12_item_features.sql" in apply(connection, files)
        after = connection.execute("select sum(item_events) from item_features").fetchone()
    assert before == after == (100_004.0,)
