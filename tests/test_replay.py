"""Replay takes from partials only what nothing touched since: with late answers and late clicks."""

import random
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from refresh_history import add_answer, add_event

from features.asof import item_features_as_of
from features.refresh import refresh
from features.replay import partials_before
from features.spec import names

NOW = datetime.now(UTC)


def day(moment):
    return moment.astimezone(UTC).date()


def refreshed(connection, as_of):
    refresh(connection, as_of=as_of)
    return as_of.timestamp()


def test_days_that_late_rows_touch(people):
    """By hand: two refreshes; then a late answer, a late event and a late click come in turn."""
    first, second = NOW - timedelta(days=2), NOW - timedelta(days=1)
    add_answer(people, "u1", NOW - timedelta(days=20, hours=1), [1])
    add_event(people, 1, 1, NOW - timedelta(days=20))
    people.commit()
    known = [refreshed(people, first)]
    add_answer(people, "u1", NOW - timedelta(days=9), [2, 3])
    people.commit()
    known.append(refreshed(people, second))
    assert partials_before(people, known) == [day(NOW - timedelta(days=9)), day(second)]
    # No answer to this user precedes it within a day, or none with the item.
    add_event(people, 2, 2, NOW - timedelta(days=9))
    add_event(people, 1, 4, NOW - timedelta(days=9))
    add_event(people, 1, 2, NOW - timedelta(days=7))
    people.commit()
    assert partials_before(people, known) == [day(NOW - timedelta(days=9)), day(second)]
    add_event(people, 1, 1, NOW - timedelta(days=20, minutes=3))
    people.commit()
    assert partials_before(people, known[::-1]) == [day(NOW - timedelta(days=20))] * 2


def test_a_refresh_of_which_no_record_is_left_had_seen_nothing(people):
    add_answer(people, "u1", NOW - timedelta(days=20), [1])
    people.commit()
    known = [refreshed(people, NOW)]
    assert partials_before(people, known) == [day(NOW)]
    people.execute("delete from feature_refreshes")
    people.commit()
    assert partials_before(people, known) == [day(NOW - timedelta(days=20))]


@pytest.mark.parametrize("seed", range(6))
def test_what_refreshes_knew_is_found_again(people, seed):
    draw = random.Random(seed)
    served = []
    for step in range(8):
        moment = NOW - timedelta(hours=8 * (8 - step))
        for _ in range(draw.randint(0, 12)):
            age = timedelta(days=draw.choice([-0.2, 0, 0, 0, 0.02, 1, 5, 40]) * draw.random())
            user, shown = draw.randint(1, 3), draw.sample(range(1, 5), 2)
            if draw.random() < 0.5:
                add_answer(people, f"u{user}", moment - age, shown)
            else:
                add_event(people, user, shown[0], moment - age, draw.choice([None, 2.5]))
        people.commit()
        as_of = refreshed(people, moment)
        columns = ", ".join(f"coalesce({name}, 'nan')" for name in names("item"))
        values = people.execute(f"select {columns} from item_features order by item_key").fetchall()
        (seen,) = people.execute("select snapshot::text from refresh_point").fetchone()
        people.commit()
        served.append((as_of, seen, np.array(values, np.float32)))
    days = partials_before(people, [as_of for as_of, _, _ in served])
    for (as_of, seen, values), partials in zip(served, days, strict=True):
        for before in (partials, None):
            again = item_features_as_of(people, [1, 2, 3, 4], [as_of] * 4, seen, before)
            np.testing.assert_array_equal(again, values)
