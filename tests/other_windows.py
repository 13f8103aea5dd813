"""What :mod:`test_windows` runs in a process with other windows: ``other_windows.py URL MICROS``.

The database was made and refreshed by a process with the default ones, as of the moment MICROS.
"""

import sys
from datetime import UTC, datetime, timedelta

import numpy as np
from refresh_history import failed, sums
from slow_features import item_features, read_answers, read_raw, user_features
from slow_partials import differences

from features.asof import item_features_as_of, user_features_as_of
from features.database import connect
from features.refresh import refresh
from features.schema import apply
from features.spec import WINDOWS_DAYS, names, spec_hash
from features.tables import engine, verify


def assert_same(found, expected, group):
    assert tuple(expected) == names(group)
    for value, name in zip(found, expected, strict=True):
        value = np.float32(np.nan if value is None else value)
        assert np.array_equal(value, expected[name], equal_nan=True), (name, value, expected[name])


def assert_right_before_the_refresh(connection):
    """A window that was not counted is missing, never wrong."""
    for days in WINDOWS_DAYS:
        found = connection.execute(
            f"select distinct item_events_{days}d is null from item_features where item_events > 0"
        ).fetchall()
        assert found == [(days not in (1, 7, 30, 90),)]
    connection.commit()


def assert_right(connection, micros):
    """The view, the state of a request and both as-of functions give what the raw events give."""
    raw, items = read_raw(connection)
    answers = read_answers(connection)
    view = f"select item_key, {', '.join(names('item'))} from item_features"
    keys = sorted(items)
    for key, *found in connection.execute(view).fetchall():
        assert_same(found, item_features(raw, items[key][0], key, micros, answers), "item")
    again = item_features_as_of(connection, keys, np.full(len(keys), micros / 1e6))
    for key, found in zip(keys, again, strict=True):
        assert_same(found, item_features(raw, items[key][0], key, micros, answers), "item")
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    for user in (1, 2, 3):
        for later in (timedelta(0), timedelta(hours=7)):
            at = micros + later // timedelta(microseconds=1)
            expected = user_features(raw, user, at)
            live = connection.execute(
                f"select {', '.join(names('user'))}"
                " from user_states(array[%s], 10, %s::timestamptz)",
                (f"u{user}", moment + later),
            ).fetchone()
            assert_same(live, expected, "user")
            (found,) = user_features_as_of(connection, [user], [at / 1e6])
            assert_same(found, expected, "user")


def main(url, micros):
    with connect(url) as connection:
        assert apply(connection)[0] == "10_formulas.sql"
        verify(engine(url))
        assert_right_before_the_refresh(connection)
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        assert not refresh(connection, as_of=moment).full
        assert differences(connection) == []
        one_by_one = sums(connection)
        assert_right(connection, micros)
        connection.commit()
        assert failed(connection) == []
        refresh(connection, full=True, as_of=moment)
        assert sums(connection) == one_by_one
    print(spec_hash())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
