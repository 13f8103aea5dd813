"""The API over HTTP on real parts, without Ray: what callers are promised."""

from __future__ import annotations

import time
import uuid

import pytest
from fixtures_serving import Service, build

from features.database import connect
from ranking.release import promote


def eventually(condition, seconds: float = 10.0):
    """Return the first true value of `condition`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    pytest.fail("it did not happen in time")


def ids(answer: dict) -> list[str]:
    return [item["id"] for item in answer["items"]]


def post_event(api: Service, user_id: str, item_id: str, **fields: object) -> dict:
    body = {"event_id": str(uuid.uuid4()), "user_id": user_id, "item_id": item_id, **fields}
    answer = api.client.post("/v1/events", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_full_answer(api):
    answer = api.recommend("1", 20)
    assert answer["status"] == "ok"
    assert answer["requested"] == answer["returned"] == len(answer["items"]) == 20
    assert uuid.UUID(answer["rec_id"]).version == 7
    assert answer["as_of"].endswith("Z")
    counts = answer["counts"]
    assert counts["retrieved"] == counts["filtered"] + counts["ranked"]
    first = answer["items"][0]
    assert first["fields"]["title"]
    assert first["sources"][0]["rank"] >= 0
    assert len(set(ids(answer))) == 20
    scores = [item["score"] for item in answer["items"]]
    assert scores == sorted(scores, reverse=True)


def test_two_twins_agree(api):
    posted = api.recommend("7", 5)
    got = api.client.get("/v1/users/7/recommendations", params={"count": 5}).json()
    assert ids(got) == ids(posted)


def test_stages_explain_the_total(api):
    ratios = []
    for user in range(1, 301):
        timing = api.recommend(str(user), 10)["timing_ms"]
        total = timing.pop("total")
        ratios.append(sum(timing.values()) / total)
    assert list(timing) == [
        "parse", "queue", "user_state", "retrieve", "features", "rank", "rerank", "respond",
    ]  # fmt: skip
    assert min(ratios) > 0.95
    assert max(ratios) < 1.05


def test_server_timing_header(api):
    answer = api.client.post("/v1/recommendations", json={"user_id": "1"})
    parts = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    assert float(parts["total"]) > 0
    assert "retrieve" in parts


def test_unknown_user_is_a_cold_start(api):
    answer = api.recommend("nobody " + str(uuid.uuid4()))
    assert answer["status"] == "ok"
    assert answer["returned"] == 10
    assert "cold_start" in [note["code"] for note in answer["notes"]]


@pytest.mark.parametrize(
    "user", ["'", '"; drop table users; --', "🎬", "a/b", "%2F", "..", "a b?c#d"]
)
def test_any_text_is_a_user(api, user):
    assert api.recommend(user, 3)["returned"] == 3
    path = "/v1/users/" + "".join(f"%{byte:02X}" for byte in user.encode()) + "/recommendations"
    assert api.client.get(path, params={"count": 3}).json()["returned"] == 3


def test_history_of_an_anonymous_user(api):
    plain = api.recommend("someone new")
    own = api.recommend("someone new", history=[{"item_id": "1", "value": 5.0}, {"item_id": "260"}])
    assert "cold_start" not in [note["code"] for note in own["notes"]]
    assert ids(own) != ids(plain)
    assert not {"1", "260"} & set(ids(own))


def test_exclusion_categories_pins_fields(api):
    plain = ids(api.recommend("3", 10))
    answer = api.recommend("3", 10, exclude_item_ids=plain[:5])
    assert not set(plain[:5]) & set(ids(answer))
    answer = api.recommend("3", 10, categories=["Western"], fields=["title", "categories", "nope"])
    assert answer["returned"] == 10
    for item in answer["items"]:
        assert "Western" in item["fields"]["categories"]
        assert set(item["fields"]) == {"title", "categories"}
    answer = api.recommend("3", 5, pins=[plain[7], plain[3]], fields=[])
    assert ids(answer)[:2] == [plain[7], plain[3]]
    assert all("fields" not in item for item in answer["items"])


def test_seen_items_come_back_on_request(api):
    with connect(api.database_url) as connection:
        row = connection.execute(
            "select array_agg(item_id) from interactions join users using (user_key)"
            " join items using (item_key) where user_id = '15'"
        ).fetchone()
    seen = set(row[0])
    assert not seen & set(ids(api.recommend("15", 100)))
    assert seen & set(ids(api.recommend("15", 100, exclude_seen=False)))


def test_a_list_that_cannot_be_full_says_why(api):
    answer = api.recommend("5", 500, categories=["IMAX"], exclude_seen=False)
    assert answer["status"] == "short"
    assert answer["returned"] < 500
    assert "short" in [note["code"] for note in answer["notes"]]


def test_an_event_changes_the_next_answer_and_is_not_recommended_back(api):
    user = f"fresh {uuid.uuid4()}"
    before = ids(api.recommend(user, 20))
    result = post_event(api, user, before[0], event_type="rating", value=5.0)
    assert (result["accepted"], result["rejected"]) == (1, 0)
    after = ids(api.recommend(user, 20))
    assert before[0] not in after
    assert after != before[1:] + after[-1:]


def test_events_are_idempotent(api):
    event = {"event_id": str(uuid.uuid4()), "user_id": "u", "item_id": "1"}
    first = api.client.post("/v1/events", json=event).json()
    again = api.client.post("/v1/events", json=[event, event]).json()
    assert first["accepted"] == 1
    assert (again["accepted"], again["duplicate"]) == (0, 2)


def test_good_events_of_a_batch_are_kept(api):
    user = f"batch {uuid.uuid4()}"
    good = {"event_id": str(uuid.uuid4()), "user_id": user, "item_id": "1", "value": 3.5}
    rows = [
        good,
        good | {"event_id": str(uuid.uuid4()), "item_id": "no such item"},
        good | {"event_id": str(uuid.uuid4()), "occurred_at": "2999-01-01T00:00:00Z"},
        good | {"event_id": str(uuid.uuid4()), "valeu": 1},
        {"user_id": user},
        "nonsense",
        good | {"event_id": str(uuid.uuid4()), "item_id": "260"},
    ]
    result = api.client.post("/v1/events", json=rows).json()
    assert [row["status"] for row in result["results"]] == [
        "accepted", "rejected", "rejected", "rejected", "rejected", "rejected", "accepted",
    ]  # fmt: skip
    assert (result["accepted"], result["rejected"]) == (2, 5)
    assert result["results"][1]["code"] == "unknown_item"
    assert result["results"][3]["pointer"] == "/3/valeu"
    with connect(api.database_url) as connection:
        row = connection.execute(
            "select count(*) from interactions join users using (user_key) where user_id = %s",
            (user,),
        ).fetchone()
    assert row == (2,)


def test_a_new_item_is_recommended_at_once_and_a_retired_one_never_again(api):
    item = f"new {uuid.uuid4()}"
    body = {"item_id": item, "title": "Brand new", "categories": ["Film-Noir"],
            "attributes": {"year": 2026, "odd": None}}  # fmt: skip
    result = api.client.put("/v1/items", json=body).json()
    assert result["accepted"] == 1
    user = f"noir {uuid.uuid4()}"

    def wanted() -> list[str]:
        return ids(api.recommend(user, 500, categories=["Film-Noir"]))

    eventually(lambda: item in wanted())
    shown = api.recommend(user, 500, categories=["Film-Noir"])
    fields = next(row["fields"] for row in shown["items"] if row["id"] == item)
    assert fields["title"] == "Brand new"
    assert api.client.put("/v1/items", json=body).json()["duplicate"] == 1
    path = "/v1/items/" + item.replace(" ", "%20")
    assert api.client.delete(path).json() == {"id": item, "status": "retired"}
    eventually(lambda: item not in wanted())
    assert api.client.delete(path).json()["status"] == "retired"


def test_similar_items(api):
    answer = api.client.get("/v1/items/1/similar", params={"count": 7, "fields": "title"}).json()
    assert answer["returned"] == len(answer["items"]) == 7
    assert "1" not in ids(answer)
    assert answer["items"][0]["fields"].keys() == {"title"}
    assert answer["timing_ms"]["total"] > 0


def test_the_same_request_id_gives_the_same_list(api):
    key = str(uuid.uuid4())
    first = api.recommend("9", 5, request_id=key)
    post_event(api, "9", first["items"][0]["id"])
    assert api.recommend("9", 5, request_id=key) == first
    assert ids(api.recommend("9", 5, request_id=key + "x")) != ids(first)
    assert api.recommend("10", 5, request_id=key)["rec_id"] != first["rec_id"]


def test_impressions_are_stored_behind_the_answer(api):
    answer = api.recommend("11", 4, scenario="home")

    def stored() -> list[tuple]:
        with connect(api.database_url) as connection:
            return connection.execute(
                "select position, item_id, release, scenario, user_id from impressions"
                " join items using (item_key) where rec_id = %s order by position",
                (answer["rec_id"],),
            ).fetchall()

    eventually(lambda: len(stored()) == 4)
    assert [row[1] for row in stored()] == ids(answer)
    assert stored()[0][2:] == (answer["release"], "home", "11")


def test_health_and_readiness(api):
    assert api.client.get("/healthz").json()["status"] == "ok"
    ready = api.client.get("/readyz")
    assert ready.status_code == 200
    names = [check["name"] for check in ready.json()["checks"]]
    assert names == ["database", "release", "features"]


def test_a_promoted_release_takes_over_and_a_damaged_one_is_refused(api):
    old = api.recommend("1")["release"]
    new = build(api.database_url, api.settings.home, f"run {uuid.uuid4()}", constant=1000.0)
    eventually(lambda: api.recommend("1")["release"] == new)
    assert api.recommend("1")["items"][0]["score"] > 900

    releases = api.settings.home / "releases"
    bad = build(api.database_url, api.settings.home, f"run {uuid.uuid4()}")
    promote(api.settings.home, new)
    path = releases / bad / "ranker.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(bytes(content))
    link = releases / ".test"
    link.symlink_to(bad)
    link.replace(releases / "current")

    def refused() -> str | None:
        listed = api.client.get("/v1/releases").json()["releases"]
        return next(row.get("refused") for row in listed if row["id"] == bad)

    assert "ranker.onnx" in eventually(refused)
    assert api.recommend("1")["release"] == new
    promote(api.settings.home, old)
    eventually(lambda: api.recommend("1")["release"] == old)


def test_metrics_add_up(api):
    def value(name: str) -> float:
        text = api.client.get("/metrics").text
        return float(next(line.split()[-1] for line in text.splitlines() if line.startswith(name)))

    name = 'shortlist_requests_total{route="recommend",status="200"}'
    before = value(name)
    ranked = value('shortlist_candidates_total{step="returned"}')
    for _ in range(3):
        api.recommend("1", 10)
    eventually(lambda: value(name) == before + 3)
    assert value('shortlist_candidates_total{step="returned"}') == ranked + 30
    assert value('shortlist_stage_seconds_count{stage="rank"}') > 0


def test_pages(api):
    page = api.client.get("/docs")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "Shortlist" in page.text
    assert api.client.get("/openapi.json").json()["openapi"] == "3.1.0"
