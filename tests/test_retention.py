"""Dropping raw events: what was counted stays, partitions leave, as-of values stand on partials."""

from datetime import UTC, datetime, time, timedelta

import pytest
from refresh_history import add_answer, add_event, failed, sums

from features.covisits import covisits_as_of
from features.errors import ConfigError
from features.partitions import ensure, partitions
from features.refresh import refresh
from features.retention import LEAST_DAYS, drop_raw_events

NOW = datetime.now(UTC)


def names(connection, parent="interactions"):
    found = [part.name for part in partitions(connection, parent)]
    connection.commit()
    return found


def count(connection, table):
    (found,) = connection.execute(f"select count(*) from {table}").fetchone()
    connection.commit()
    return found


@pytest.fixture
def old(people):
    """Events and answers of 200 days, most of them in the partition of the past."""
    for days in range(0, 200, 4):
        add_event(people, 1 + days % 2, 1 + days % 3, NOW - timedelta(days=days, hours=1), days)
        add_answer(people, "u1", NOW - timedelta(days=days, hours=2), [1, 2])
    people.commit()
    return people


def test_too_few_days_are_refused(people):
    with pytest.raises(ConfigError, match=r"days is 91, expected at least 92.*90 days"):
        drop_raw_events(people, LEAST_DAYS - 1)


def test_every_sum_stays_and_what_is_old_leaves(old):
    refresh(old)
    before = sums(old)
    done = drop_raw_events(old, 100)
    assert sums(old) == before
    day = datetime.now(UTC).date() - timedelta(days=100)
    assert done.raw_since == day
    (oldest,) = old.execute("select min(occurred_at) from interactions").fetchone()
    assert day - timedelta(days=1) <= oldest.date()
    assert done.counts["interactions"] == 50 - count(old, "interactions") == 24
    assert done.counts["answers"] == 50 - count(old, "answers") > 0
    assert count(old, "interaction_corrections") == 0
    assert count(old, "answer_corrections") == 0
    assert failed(old) == []


def test_uncounted_events_are_counted_before_they_leave(old):
    drop_raw_events(old, 100)
    (events,) = old.execute("select sum(events) from user_totals").fetchone()
    assert events == 50


def test_afterwards_late_events_of_dropped_days_are_added_and_a_rebuild_keeps_all(old):
    drop_raw_events(old, 100)
    before = sums(old)
    add_event(old, 1, 2, NOW - timedelta(days=150), 2.5)
    add_event(old, 2, 3, NOW - timedelta(days=3), None)
    old.commit()
    refresh(old)
    added = sums(old)
    totals = {key: row[0] for key, row in added["item_totals"].items()}
    old_totals = {key: row[0] for key, row in before["item_totals"].items()}
    assert totals == {**old_totals, 2: old_totals[2] + 1, 3: old_totals[3] + 1}
    refresh(old, full=True)
    assert sums(old) == added
    # Late events of dropped days that a full refresh is the first to see.
    add_event(old, 1, 2, NOW - timedelta(days=150), 2.5)
    old.commit()
    refresh(old, full=True)
    assert sums(old)["item_totals"][2][0] == old_totals[2] + 2
    assert failed(old) == []


def test_a_correction_of_a_kept_day_after_dropping(old):
    drop_raw_events(old, 100)
    old.execute("update interactions set value = 9 where occurred_at > now() - interval '2 days'")
    old.commit()
    refresh(old)
    assert failed(old) == []
    corrected = sums(old)
    refresh(old, full=True)
    assert sums(old) == corrected


def test_running_it_again_drops_nothing_more(old):
    drop_raw_events(old, 100)
    again = drop_raw_events(old, 100)
    assert again.counts == dict.fromkeys(again.counts, 0)
    assert again.partitions == []


def test_more_days_than_were_kept_bring_nothing_back(old):
    first = drop_raw_events(old, 100)
    assert drop_raw_events(old, 150).raw_since == first.raw_since


def test_whole_partitions_are_dropped_and_the_past_takes_their_time(old):
    """As if the schema had been applied 200 days ago with partitions of 30 days."""
    start = (NOW - timedelta(days=200)).replace(hour=0, minute=0, second=0, microsecond=0)
    old.execute("create table moved as select * from interactions")
    for name in names(old)[1:]:
        old.execute(f"drop table {name}")
    old.execute("alter table interactions detach partition interactions_past")
    old.execute("truncate interactions_past")
    old.execute(
        "alter table interactions attach partition interactions_past"
        f" for values from (minvalue) to ('{start}')"
    )
    old.execute("insert into interactions overriding system value select * from moved")
    old.execute("drop table moved")
    old.commit()
    assert count(old, "interactions_later") == 50
    made = ensure(old, 30)
    assert len(made) == 9  # 200 days and two periods ahead
    assert count(old, "interactions_later") == 0
    assert count(old, "interactions") == 50
    refresh(old)
    before = sums(old)
    done = drop_raw_events(old, 100)
    assert done.partitions == made[:3]
    assert names(old) == ["interactions_past", *made[3:]]
    assert sums(old) == before
    add_event(old, 1, 1, start + timedelta(days=5), 1.0)
    old.commit()
    assert count(old, "interactions_past") == 1
    refresh(old)
    assert failed(old) == []


def test_event_ids_and_served_features_leave_with_the_events(old):
    old.execute(
        "insert into event_ids (event_id, received_on) values ('young', now()),"
        " ('old', now() - interval '200 days')"
    )
    old.execute(
        "insert into served_features select now() - age * interval '1 day', gen_random_uuid(),"
        " 'u1', 'r', '', now(), pg_current_snapshot(), now(), null, '', '{}', '', ''"
        " from unnest(array[1, 200]) as age"
    )
    old.commit()
    counts = drop_raw_events(old, 100).counts
    assert (counts["event_ids"], counts["served_features"]) == (1, 1)
    assert old.execute("select event_id from event_ids").fetchall() == [("young",)]


def test_covisits_leave_when_no_event_that_is_left_looks_back_to_them(people):
    for days in (250, 191, 189, 95, 2):
        for item in (1, 2):
            add_event(people, 1, item, NOW - timedelta(days=days, minutes=item), 1)
    # Those of the day before the first whole one stay, and look back 90 days from there.
    edge = datetime.now(UTC).date() - timedelta(days=101)
    for age in (0, 90, 91):
        for minute, item in enumerate((1, 2)):
            noon = datetime.combine(edge - timedelta(days=age), time(12, minute), UTC)
            add_event(people, 2, item, noon)
    people.commit()
    refresh(people)
    moment = datetime.combine(edge, time(12), UTC).timestamp()
    before = covisits_as_of(people, [1, 2], [moment] * 2)
    done = drop_raw_events(people, 100)
    assert done.raw_since == datetime.now(UTC).date() - timedelta(days=100)
    for found, expected in zip(covisits_as_of(people, [1, 2], [moment] * 2), before, strict=True):
        assert (found == expected).all()
    left = people.execute("select distinct event_day from covisit_daily order by 1").fetchall()
    people.commit()
    assert all(edge - day <= timedelta(days=90) for (day,) in left)
    refresh(people, full=True)
    assert failed(people) == []
    assert (
        people.execute("select distinct event_day from covisit_daily order by 1").fetchall() == left
    )
