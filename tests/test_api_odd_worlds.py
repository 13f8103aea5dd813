"""Odd catalogues: answers stay documented."""

from __future__ import annotations

import time

from fixtures_serving import Service, build, in_thread, settings_for

from features.database import connect
from features.events import EventRow, record_events
from features.refresh import refresh


def service_on(url: str, tmp_path, fill=lambda connection: None):
    with connect(url) as connection:
        fill(connection)
        connection.commit()
        refresh(connection)
    build(url, tmp_path, "run")
    return in_thread(settings_for(url, tmp_path), tmp_path / "instance")


def ids(answer: dict) -> list[str]:
    return [item["id"] for item in answer["items"]]


def test_an_empty_catalogue(database_url, tmp_path):
    with service_on(database_url, tmp_path) as api:
        answer = api.recommend("anyone", 10)
        assert answer["status"] == "short"
        assert answer["items"] == []
        assert "short" in [note["code"] for note in answer["notes"]]
        assert api.client.get("/v1/items/1/similar").status_code == 404
        # It can be filled while it serves.
        rows = [{"item_id": f"i{n}", "title": f"Item {n}"} for n in range(3)]
        assert api.client.put("/v1/items", json=rows).json()["accepted"] == 3
        end = time.monotonic() + 10
        while len(api.recommend("anyone", 10)["items"]) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        assert set(ids(api.recommend("anyone", 10))) == {"i0", "i1", "i2"}


def test_one_user_and_fewer_items_than_wanted(database_url, tmp_path):
    def fill(connection) -> None:
        connection.execute(
            "insert into items (item_id, title, categories, created_at)"
            " select 'i' || n, 'Item ' || n, array['A'], now() from generate_series(1, 4) n"
        )
        record_events(connection, [EventRow("only", "i1", "rating", 5.0, time.time() - 3600)])

    with service_on(database_url, tmp_path, fill) as api:
        answer = api.recommend("only", 10)
        assert answer["status"] == "short"
        assert set(ids(answer)) == {"i2", "i3", "i4"}
        # Items without any interaction are found and have neighbours too.
        similar = api.client.get("/v1/items/i4/similar", params={"count": 3}).json()
        assert set(ids(similar)) == {"i1", "i2", "i3"}
        for item in ("i2", "i3", "i4"):
            event = {"event_id": item, "user_id": "only", "item_id": item}
            assert api.client.post("/v1/events", json=event).json()["accepted"] == 1
        assert ids(api.recommend("only", 10)) == []
        assert len(ids(api.recommend("only", 10, exclude_seen=False))) == 4


def test_a_service_without_a_release_says_so(database_url, tmp_path):
    settings = settings_for(database_url, tmp_path)
    with in_thread(settings, tmp_path / "instance") as api:
        for answer in (
            api.client.post("/v1/recommendations", json={"user_id": "u"}),
            api.client.get("/v1/items/1/similar"),
        ):
            assert answer.status_code == 503
            assert answer.json()["code"] == "not_ready"
        ready = api.client.get("/readyz").json()
        assert "shortlist release build" in ready["checks"][1]["detail"]
        assert api.client.get("/v1/releases").json() == {"serving": None, "releases": []}
        assert isinstance(api, Service)
