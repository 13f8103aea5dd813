"""The checks: they pass on what a refresh wrote, and each fails when what it guards is broken."""

from datetime import UTC, datetime, timedelta

import pytest
from refresh_history import add_answer, add_event, failed

from features.database import connect
from features.errors import SchemaError
from features.refresh import checks, refresh
from features.spec import names

NOW = datetime.now(UTC)

LEAK = "nothing counts an event of its as_of or later"
ITEM_DAYS = "daily item partials count the raw events of their day"
ITEM_SUMS = "item sums are those of their days"
FEATURES = "refreshed item features equal their as-of values"


@pytest.fixture
def busy(people):
    """Item 97 is one of every 97th, which are computed again by other code."""
    people.execute(
        "insert into items (item_key, item_id, created_at) overriding system value"
        " values (97, 'checked', now() - interval '3 days')"
    )
    for days in (0, 2, 20, 95):
        for item in (1, 97):
            add_event(people, 1, item, NOW - timedelta(days=days, hours=1), 2.0 + days)
        add_answer(people, "u1", NOW - timedelta(days=days, hours=2), [1, 97])
    people.commit()
    refresh(people)
    return people


def test_the_sample_passes(sample):
    found = checks(sample)
    assert len(found) == 11
    assert failed(sample) == []
    assert all(check.detail for check in found)


def test_a_small_history_passes(busy):
    assert failed(busy) == []


def test_a_check_that_fails_is_first(busy):
    add_event(busy, 1, 1, NOW + timedelta(hours=1))
    found = checks(busy)
    assert (found[0].check, found[0].passed) == ("no event lies in the future", False)
    assert found[0].detail == "1 events more than five minutes ahead"


@pytest.mark.parametrize(
    ("change", "check"),
    [
        # Leaks: an event after as_of is counted, or a count comes from nowhere.
        ("update refresh_point set as_of = as_of - interval '12 hours'", LEAK),
        ("update item_daily set last_at = now() + interval '1 minute'", LEAK),
        ("insert into click_daily values (current_date + 2, 1, 0)", LEAK),
        ("insert into covisit_daily values (1, 2, current_date + 2, 1)", LEAK),
        ("update item_daily set events = events + 1 where item_key = 1", ITEM_DAYS),
        ("update item_totals set events = events + 1 where item_key = 1", ITEM_SUMS),
        ("update item_totals set clicks = clicks + 1 where item_key = 1", ITEM_SUMS),
        (
            "update item_totals set window_events[2] = window_events[2] + 1 where item_key = 97",
            FEATURES,
        ),
        (
            "update user_daily set events = events + 1",
            "daily user partials count the raw events of their day",
        ),
        (
            "update user_category_daily set events = events + 1",
            "daily category partials count the categories of raw events",
        ),
        ("update user_totals set active_days = 7", "user sums are those of their days"),
        ("delete from user_category_totals", "category sums are those of their days"),
        (
            "update item_totals set window_events = '{9, 1, 1, 1}'",
            "windows lie inside each other and nothing is negative",
        ),
        ("delete from users where user_id = 'u1'", "every event has its user and its item"),
    ],
)
def test_what_is_broken_is_found(busy, change, check):
    busy.execute(change)
    assert check in failed(busy)


@pytest.mark.parametrize("wrong", names("item"))
def test_a_view_that_computes_a_feature_otherwise_is_found(busy, wrong):
    """Every feature of the spec is compared with its as-of value, without being listed."""
    busy.execute("alter view item_features rename to right_features")
    columns = ", ".join(
        f"coalesce({name}, 0) + 1 as {name}" if name == wrong else name for name in names("item")
    )
    busy.execute(f"create view item_features as select item_key, {columns} from right_features")
    assert failed(busy) == [FEATURES]


def test_corrections_that_wait_are_no_fault(busy):
    busy.execute("delete from interactions where interaction_id = 1")
    found = checks(busy)
    assert all(check.passed for check in found)
    assert any("1 corrections wait for a refresh" in check.detail for check in found)


def test_events_since_the_refresh_are_no_fault(busy):
    add_event(busy, 1, 97, NOW - timedelta(days=1))
    busy.commit()
    assert failed(busy) == []


def test_without_a_schema(bare_url):
    with connect(bare_url) as connection, pytest.raises(SchemaError, match="shortlist db apply"):
        checks(connection)
