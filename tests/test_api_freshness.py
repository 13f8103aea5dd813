"""How old features are, what happens beyond their maximum age, and what sampled answers keep."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures_database import Server
from fixtures_serving import Service, build, in_thread, settings_for

from features.database import connect
from features.refresh import refresh
from features.served import unpacked
from features.skew import skew
from features.spec import names, spec_hash

_HOUR = 3600.0


def eventually(condition, seconds: float = 10.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    pytest.fail("it did not happen in time")


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


@pytest.fixture(scope="module")
def world(
    database_server: Server, sample_template: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """A database of its own and a home with a release of it."""
    url = database_server.create("freshness", sample_template)
    home = tmp_path_factory.mktemp("freshness")
    build(url, home, "first")
    return url, home


@pytest.fixture
def service(world: tuple[str, Path], tmp_path: Path) -> Iterator[Service]:
    url, home = world
    features = {"item_max_age_s": _HOUR, "candidate_max_age_s": _HOUR, "served_sample_rate": 1.0}
    with connect(url) as connection:
        refresh(connection)
    with in_thread(settings_for(url, home, features), tmp_path) as found:
        yield found


def refreshed_at(service: Service) -> datetime:
    with connect(service.database_url) as connection:
        return connection.execute("select as_of from refresh_point").fetchone()[0]


def metric(service: Service, series: str) -> float:
    lines = service.client.get("/metrics").text.splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(series)), 0.0)


def codes(answer: dict[str, Any]) -> list[str]:
    return [note["code"] for note in answer["notes"]]


def test_an_answer_says_of_when_its_features_are(service):
    answer = service.recommend("1")
    groups = answer["features"]
    assert list(groups) == ["user", "item", "cross", "candidate"]
    assert groups["user"]["as_of"] == groups["cross"]["as_of"] == answer["as_of"]
    assert moment(groups["item"]["as_of"]) == refreshed_at(service)
    assert moment(groups["candidate"]["as_of"]) < moment(groups["item"]["as_of"])
    assert not any(group["expired"] for group in groups.values())
    ready = service.client.get("/readyz").json()
    assert [group["group"] for group in ready["features"]] == ["item", "candidate"]
    assert ready["features"][0]["as_of"] == groups["item"]["as_of"]
    assert 0 < ready["features"][0]["age_s"] < _HOUR == ready["features"][0]["max_age_s"]
    assert ready["checks"][-1] == {
        "name": "features", "passed": True, "detail": "no group is beyond its maximum age",
    }  # fmt: skip
    eventually(lambda: metric(service, "shortlist_features_age_seconds") > 0)


def test_a_refresh_is_in_the_next_answers_without_a_new_release(service):
    before = service.recommend("1")["features"]["item"]["as_of"]
    with connect(service.database_url) as connection:
        refresh(connection)
    now = refreshed_at(service)
    assert now > moment(before)
    eventually(lambda: moment(service.recommend("1")["features"]["item"]["as_of"]) == now)
    assert metric(service, "shortlist_feature_refreshes_total") >= 1


def test_features_beyond_their_age_take_their_defaults_and_everyone_is_told(service):
    fresh = service.recommend("7", 50)
    assert "features_expired" not in codes(fresh)
    counted = 'shortlist_features_expired_total{group="item"}'
    assert metric(service, counted) == 0
    set_back(service, timedelta(hours=25))

    def expired() -> dict[str, Any] | None:
        answer = service.recommend("7", 50)
        return answer if answer["features"]["item"]["expired"] else None

    answer = eventually(expired)
    assert moment(answer["features"]["item"]["as_of"]) == refreshed_at(service)
    assert codes(answer) == ["features_expired"]
    assert answer["notes"][0]["detail"].startswith("item features are 1.0")
    assert "at most 0.0417 are allowed (features.item_max_age_s)" in answer["notes"][0]["detail"]
    eventually(lambda: metric(service, counted) >= 1)
    ready = service.client.get("/readyz")
    assert ready.status_code == 200
    group = ready.json()["features"][0]
    assert group["expired"]
    assert group["age_s"] > 25 * _HOUR
    assert "run 'shortlist features refresh'" in ready.json()["checks"][-1]["detail"]
    # A cold start is ranked without features: none of them is expired.
    assert codes(service.recommend(f"nobody {uuid.uuid4()}")) == ["cold_start"]

    set_back(service, timedelta(hours=-25))
    eventually(lambda: not service.recommend("7")["features"]["item"]["expired"])
    assert "features_expired" not in codes(service.recommend("7"))


def set_back(service: Service, by: timedelta) -> None:
    with connect(service.database_url) as connection:
        connection.execute("update refresh_point set as_of = as_of - %s", (by,))


def test_a_sampled_answer_keeps_what_its_candidates_were_ranked_with(service):
    eventually(lambda: moment(service.recommend("3")["features"]["item"]["as_of"])
               == refreshed_at(service))  # fmt: skip
    answer = service.recommend("3", 5)
    with connect(service.database_url) as connection:

        def stored() -> tuple[Any, ...] | None:
            connection.rollback()
            return connection.execute(
                "select user_id, release, spec_hash, user_as_of, user_snapshot::text, item_as_of,"
                " user_features, item_keys, item_features, cross_features from served_features"
                " where rec_id = %s",
                (answer["rec_id"],),
            ).fetchone()

        row = eventually(stored)
        assert row[:3] == ("3", answer["release"], spec_hash())
        assert row[3] == moment(answer["as_of"])
        assert row[4].count(":") == 2
        assert row[5] == refreshed_at(service)
        keys = list(row[7])
        assert len(keys) == len(set(keys)) == 50
        shown = connection.execute(
            "select array_agg(item_id order by place) from unnest(%s::int[]) with ordinality"
            " as shown (item_key, place) join items using (item_key)",
            (keys[:5],),
        ).fetchone()
        assert set(shown[0]) == {item["id"] for item in answer["items"]}
        raw = unpacked(row[8], len(names("item")))
        columns = ", ".join(names("item"))
        view = connection.execute(
            f"select {columns} from item_features where item_key = any(%s)"
            " order by array_position(%s, item_key)",
            (keys, keys),
        ).fetchall()
        np.testing.assert_array_equal(raw, np.array(view, np.float32))
        (user,) = unpacked(row[6], len(names("user")))
        events = connection.execute(
            "select count(*) from interactions join users using (user_key) where user_id = '3'"
        ).fetchone()
        assert user[names("user").index("user_events")] == events[0]
        assert unpacked(row[9], len(names("cross"))).shape == (50, 2)


def test_a_history_that_comes_with_the_request_is_not_kept_and_rows_are_bounded(world, tmp_path):
    url, home = world
    features = {"served_sample_rate": 1.0, "served_queue": 3}
    with in_thread(settings_for(url, home, features, impression_flush_s=3600), tmp_path) as service:
        service.recommend("4", history=[{"item_id": "1"}])
        for _ in range(5):
            service.recommend("5")
        assert metric(service, 'shortlist_served_features_total{status="dropped"}') == 2
    with connect(url) as connection:
        row = connection.execute(
            "select count(*) filter (where user_id = '4'), count(*) filter (where user_id = '5')"
            " from served_features"
        ).fetchone()
    assert row == (0, 3)


def test_what_was_served_while_events_came_and_features_were_refreshed_is_computed_again(service):
    """Readers, writers and refreshes at the same time: no served value differs afterwards."""
    until = time.monotonic() + 4
    users = [str(number) for number in range(1, 9)]

    def post(number: int) -> int:
        accepted = 0
        while time.monotonic() < until:
            rows = [
                {
                    "event_id": str(uuid.uuid4()),
                    "user_id": user,
                    "item_id": str(1 + (accepted + number) % 7),
                    "value": 0.5 + accepted % 9 / 2,
                }
                for user in users[number::2]
            ]
            answer = service.client.post("/v1/events", json=rows)
            accepted += answer.json()["accepted"]
        return accepted

    def ask(user: str) -> int:
        asked = 0
        while time.monotonic() < until:
            service.recommend(user, 10)
            asked += 1
        return asked

    def follow() -> int:
        done = 0
        with connect(service.database_url) as connection:
            while time.monotonic() < until:
                refresh(connection)
                done += 1
        return done

    with ThreadPoolExecutor(9) as threads:
        posted = [threads.submit(post, number) for number in range(2)]
        refreshed = threads.submit(follow)
        asked = [threads.submit(ask, user) for user in users[:4]]
        assert sum(future.result() for future in posted) > 50
        assert sum(future.result() for future in asked) > 20
        assert refreshed.result() >= 1
    with connect(service.database_url) as connection:
        eventually(lambda: metric(service, "shortlist_served_features_total") > 20)
        report = skew(connection)
    assert report.answers > 20
    compared = {row.feature: row.compared for row in report.features}
    assert set(compared) == {*names("user"), *names("item"), *names("cross")}
    assert min(compared.values()) > 20
    assert report.differing == 0, [row for row in report.features if row.differing]
