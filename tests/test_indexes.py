"""A large first load builds indexes at its end; nothing that may happen meanwhile loses them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from features import indexes
from features.database import connect
from features.ingest.load import load
from features.refresh import checks, refresh

ROWS = 135_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "interactions.csv"
    lines = (
        f"customer-{row % 900},product-{row % 50},{1_600_000_000 + row}\n" for row in range(ROWS)
    )
    path.write_text("user_id,item_id,timestamp\n" + "".join(lines))
    assert path.stat().st_size > 4 << 20
    return path


@pytest.fixture
def other(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A second connection to the database of the test."""
    with connect(database_url) as found:
        yield found


def found(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Return the indexes of interactions, those of the partitions too, and their definitions."""
    rows = connection.execute(
        """
        select indexrelid::regclass::text, pg_get_indexdef(indexrelid)
        from pg_index inner join pg_class on pg_index.indrelid = pg_class.oid
        where pg_class.relname like 'interactions%' and pg_index.indisvalid
        """
    ).fetchall()
    connection.commit()
    return dict(rows)


def test_a_first_load_ends_with_all_indexes(connection, other, large):
    before = found(connection)
    meanwhile = []
    report = load(connection, large, on_rows=lambda rows: meanwhile.append(found(other)))
    assert report.interactions == ROWS
    assert found(connection) == before
    assert not any("by_time" in name for name in meanwhile[0])
    assert any("user_history" in name for name in meanwhile[0])
    refresh(connection)
    assert all(check.passed for check in checks(connection))


def test_a_load_into_a_table_with_events_leaves_the_indexes(connection, other, large, tmp_path):
    small = tmp_path / "interactions.csv"
    small.write_text("user_id,item_id,timestamp\nu,i,1500000000\n")
    load(connection, small)
    before, meanwhile = found(connection), []
    load(connection, large, on_rows=lambda rows: meanwhile.append(found(other)))
    assert meanwhile
    assert all(now == before for now in meanwhile)


def test_a_load_that_fails_builds_them(connection, large):
    before = found(connection)

    def fail(rows: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(connection, large, on_rows=fail)
    assert found(connection) == before


@pytest.mark.parametrize("mend", [refresh, indexes.restore, lambda connection: None])
def test_what_a_killed_load_left_out_is_built_by_the_next(database_url, connection, large, mend):
    before = found(connection)
    killed = connect(database_url)
    entered = indexes.deferred(killed, wanted=True)
    entered.__enter__()
    assert len(found(connection)) < len(before)
    indexes.restore(connection)
    assert len(found(connection)) < len(before), "a load is at work: it builds them itself"
    killed.close()
    mend(connection)
    if mend not in (refresh, indexes.restore):
        load(connection, large)
    assert found(connection) == before


def test_a_table_in_use_is_left_as_it_is(connection, other, large):
    before = found(connection)
    other.execute("lock table interactions in access share mode")
    report = load(connection, large)
    other.rollback()
    assert report.interactions == ROWS
    assert found(connection) == before
