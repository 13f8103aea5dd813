"""DELETE /v1/users/{id}: nothing of a person is left, and nothing brings them back."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from fixtures_serving import Service, in_thread, settings_for

from features.database import connect

# Every table with a column that names a user.
_TABLES = """
    select table_name, column_name
    from information_schema.columns
    inner join information_schema.tables using (table_schema, table_name)
    where
        table_schema = 'shortlist' and table_type = 'BASE TABLE'
        and column_name in ('user_id', 'user_key')
"""


@pytest.fixture
def user() -> str:
    return f"person {uuid.uuid4()}"


def rows_of(service: Service, user: str, key: int | None) -> dict[str, int]:
    """Return how many rows each table has of a user, tables without one left out."""
    found = {}
    with connect(service.database_url) as connection:
        for table, column in connection.execute(_TABLES).fetchall():
            wanted = user if column == "user_id" else key
            (count,) = connection.execute(
                f'select count(*) from "{table}" where "{column}" = %s',  # our tables
                (wanted,),
            ).fetchone()
            if count:
                found[table] = count
    return found


def key_of(service: Service, user: str) -> int | None:
    with connect(service.database_url) as connection:
        row = connection.execute(
            "select user_key from users where user_id = %s", (user,)
        ).fetchone()
    return None if row is None else row[0]


def post(service: Service, user: str, items: list[str]) -> None:
    rows = [
        {"event_id": str(uuid.uuid4()), "user_id": user, "item_id": item, "value": 4.0}
        for item in items
    ]
    answer = service.client.post("/v1/events", json=rows)
    assert answer.json()["accepted"] == len(rows), answer.text


def erase(service: Service, user: str) -> dict[str, int]:
    answer = service.client.delete("/v1/users/" + user.replace(" ", "%20"))
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["id"], body["status"]) == (user, "erased")
    return body["rows"]


def eventually(condition, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_an_erased_user_is_a_stranger(api, user):
    post(api, user, ["1", "260", "2571"])
    key = key_of(api, user)
    first = api.recommend(user, 5, request_id="r")
    assert "cold_start" not in [note["code"] for note in first["notes"]]
    eventually(lambda: "answers" in "".join(rows_of(api, user, key)))
    counts = erase(api, user)
    assert counts["users"] == 1
    assert counts["interactions"] == 3
    assert counts["answers"] == 1
    assert rows_of(api, user, key) == {}
    again = api.recommend(user, 5, request_id="r")
    assert again["rec_id"] != first["rec_id"]
    assert "cold_start" in [note["code"] for note in again["notes"]]


def test_erasing_again_or_nobody_is_no_error(api, user):
    assert set(erase(api, user).values()) == {0}
    post(api, user, ["1"])
    erase(api, user)
    assert set(erase(api, user).values()) == {0}
    bad = api.client.delete("/v1/users/" + "x" * 257)
    assert (bad.status_code, bad.json()["pointer"]) == (422, "/id")
    other = api.client.get("/v1/users/x")
    assert (other.status_code, other.headers["allow"]) == (405, "DELETE")


def test_who_comes_back_is_new(api, user):
    post(api, user, ["1", "260"])
    old = key_of(api, user)
    erase(api, user)
    post(api, user, ["2571"])
    assert key_of(api, user) not in (None, old)
    with connect(api.database_url) as connection:
        row = connection.execute(
            "select array_agg(item_id) from interactions join users using (user_key)"
            " join items using (item_key) where user_id = %s",
            (user,),
        ).fetchone()
    assert row == (["2571"],)
    shown = api.recommend(user, 3)
    eventually(lambda: "answers" in "".join(rows_of(api, user, None)))
    assert shown["returned"] == 3


@pytest.mark.parametrize("asked", [0, 1], ids=["the same replica", "another replica"])
def test_what_waits_in_a_replica_does_not_bring_the_user_back(
    serving_url: str, serving_home: Path, tmp_path: Path, user: str, asked: int
) -> None:
    settings = settings_for(
        serving_url,
        serving_home,
        features={"served_sample_rate": 1.0},
        impression_flush_s=3600,
    )
    with in_thread(settings, tmp_path) as one, in_thread(settings, tmp_path) as other:
        post(one, user, ["1", "260", "2571"])
        key = key_of(one, user)
        first = one.recommend(user, 5, request_id="r")
        one.recommend("1", 5)
        assert other.recommend(user, 5, request_id="r") == first
        assert "answers" not in "".join(rows_of(one, user, key))  # it waits
        counts = erase((one, other)[asked], user)
        assert counts["interactions"] == 3
        fresh = [service.recommend(user, 5, request_id="r") for service in (one, other)]
        assert fresh[0] == fresh[1] != first
    # Both have written what waited; only the answer from after the erasure may be there.
    left = rows_of(one, user, key)
    assert [table for table in left if not table.startswith("answers")] == []
    with connect(serving_url) as connection:
        answers = connection.execute(
            "select rec_id::text from answers where user_id = %s", (user,)
        ).fetchall()
        others = connection.execute(
            "select count(*) from served_features where user_id = '1'"
        ).fetchone()
    assert answers == [(fresh[0]["rec_id"],)]
    assert others[0] > 0
