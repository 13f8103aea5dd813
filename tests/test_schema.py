"""The schema: applied once, refused when a table file changed, safe at the same time."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from refresh_history import failed
from slow_partials import differences

from features.database import connect
from features.errors import SchemaError
from features.partitions import ensure, partitions
from features.refresh import refresh
from features.schema import SqlFile, apply, run_script, sql_files


def objects(connection):
    """Return every object of the schema with its internal number, which a re-creation changes."""
    return connection.execute(
        "select oid, relname from pg_class"
        " where relnamespace = 'shortlist'::regnamespace and relkind in ('r', 'p', 'v', 'i', 'I')"
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
    assert after["item_totals"] == before["item_totals"]
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


def test_a_formula_that_changed_keeps_what_is_counted(sample_url):
    files = changed(sql_files(), "10_formulas.sql", lambda text: text + "\n-- new\n")
    with connect(sample_url) as connection:
        before = connection.execute("select sum(item_events) from item_features").fetchone()
        assert "12_item_features.sql" in apply(connection, files)
        after = connection.execute("select sum(item_events) from item_features").fetchone()
        assert failed(connection) == []
    assert before == after == (100_004.0,)


_OLD_ROWS = """
insert into users (user_id) values ('u1'), ('u2');
insert into items (item_id, categories) values ('i1', '{x}'), ('i2', '{}');
insert into interactions (
    interaction_id, user_key, occurred_at, received_at, item_key, value, event_type, event_id
) overriding system value values
    (3, 1, '2020-02-03 04:05:06.789+00', '2020-02-03 05:00+00', 1, 2.5, 'view', 'e3'),
    (7, 2, '2021-01-01 00:00+00', '2021-01-01 23:30-01', 2, null, 'buy', null),
    (9, 1, now() + interval '2 days', now(), 2, 1, 'view', 'e9');
insert into impressions (rec_id, position, item_key, served_at, score, user_id, release, source)
values
    ('00000000-0000-0000-0000-000000000001', 1, 1, '2021-01-01', 0.5, 'u2', 'r', null),
    ('00000000-0000-0000-0000-000000000001', 0, 2, '2021-01-01', 0.75, 'u2', 'r', 'new'),
    ('00000000-0000-0000-0000-000000000002', 0, 1, '2021-01-02', null, 'x', 'r', 'new');
"""


def test_a_database_of_version_0_1_keeps_every_row(bare_url):
    """Its tables were those of files 01 to 03; rows get partitions and lose nothing."""
    files = sql_files()
    with connect(bare_url) as connection:
        apply_only(connection, [file for file in files if file.name < "04"])
        with connection.transaction():
            run_script(connection, _OLD_ROWS)
        assert "04_partitions.sql" in apply(connection)
        events = connection.execute(
            "select interaction_id, user_key, item_key, value, event_type, event_id,"
            " occurred_at < '2021-01-01' from interactions inner join event_types"
            " using (event_type_key) order by interaction_id"
        ).fetchall()
        assert events == [
            (3, 1, 1, 2.5, "view", "e3", True),
            (7, 2, 2, None, "buy", None, False),
            (9, 1, 2, 1.0, "view", "e9", False),
        ]
        assert connection.execute(
            "select event_id, received_on < '2021-01-01' from event_ids order by event_id"
        ).fetchall() == [("e3", True), ("e9", False)]
        assert connection.execute(
            "select position, item_key, user_id, score, source from impressions"
            " order by rec_id, position"
        ).fetchall() == [
            (0, 2, "u2", 0.75, "new"),
            (1, 1, "u2", 0.5, None),
            (0, 1, "x", None, "new"),
        ]
        connection.execute(
            "insert into interactions (user_key, item_key, occurred_at, event_type_key)"
            " values (1, 1, now(), 1)"
        )
        assert connection.execute("select max(interaction_id) from interactions").fetchone() == (
            10,
        )
        connection.commit()
        assert refresh(connection).watermark == 10
        assert differences(connection) == []


def apply_only(connection, files):
    """Apply table files as a version without partitions did."""
    connection.execute(next(file.text for file in sql_files() if file.name < "01"))
    connection.execute("set local search_path = shortlist")
    for file in files:
        if file.name >= "01":
            run_script(connection, file.text)
            connection.execute(
                "insert into schema_versions (name, sha256) values (%s, %s)",
                (file.name, file.sha256),
            )
    connection.commit()


def test_a_migrated_database_counts_all_before_any_new_event(bare_url):
    with connect(bare_url) as connection:
        apply_only(connection, [file for file in sql_files() if file.name < "04"])
        with connection.transaction():
            run_script(connection, _OLD_ROWS)
        apply(connection)
        assert refresh(connection).watermark == 9
        assert differences(connection) == []


def test_partitions_are_there_for_now_and_two_periods(connection):
    known = partitions(connection, "interactions")
    assert known[0].starts_at is None
    assert known[1].starts_at <= datetime.now(UTC) < known[1].ends_at
    assert len(known) == 4
    assert [part.ends_at - part.starts_at for part in known[1:]] == [timedelta(days=90)] * 3
    assert ensure(connection) == []


def test_partitions_of_another_width(bare_url):
    with connect(bare_url) as connection:
        apply(connection, partition_days=7)
        known = partitions(connection, "answers")
        assert {part.ends_at - part.starts_at for part in known[1:]} == {timedelta(days=7)}
        assert known[-2].starts_at > datetime.now(UTC)


def test_a_reader_that_stays_does_not_hold_up_new_partitions_for_ever(people, database_url):
    for part in partitions(people, "interactions")[1:]:
        people.execute(f"drop table {part.name}")
    people.commit()
    with connect(database_url) as reader:
        reader.execute("select count(*) from interactions")
        assert ensure(people) == []
        reader.commit()
        assert len(ensure(people)) == 3
