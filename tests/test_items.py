"""Changes of the catalogue: each item answered, and a follower misses none."""

import asyncio
import threading

import pytest

from features.database import DatabaseConfig, connect, open_pool
from features.items import ItemInput, changed_items, retire_item, upsert_items
from features.spec import names
from features.store import read_catalogue


def in_pool(url, work, **config):
    async def go():
        async with open_pool(url, DatabaseConfig(**config)) as pool:
            return await work(pool)

    return asyncio.run(go())


def test_create_change_and_leave(connection, database_url):
    tent = ItemInput("t", "Tent", ["Outdoor", "Sale", "Outdoor"], {"price": 99.5, "new": True})

    async def work(pool):
        statuses = []
        for item in (
            tent,
            tent,
            ItemInput("t", "Tent", ["Outdoor", "Sale"], {"price": 80, "new": None}),
            ItemInput("t", "Tent", available=False, created_at=1000.0),
            ItemInput("t", "Tent", available=False),
        ):
            (result,) = await upsert_items(pool, [item])
            statuses.append((result.item_id, result.status, result.reason))
        return statuses, await changed_items(pool, 0)

    statuses, catalogue = in_pool(database_url, work)
    kinds = ["created", "unchanged", "updated", "updated", "unchanged"]
    assert statuses == [("t", kind, None) for kind in kinds]
    assert catalogue.item_ids == ["t"]
    assert catalogue.created_at.tolist() == [1000.0]
    assert catalogue.available.tolist() == [False]


BAD = [
    (ItemInput(""), "invalid_item_id: item_id is empty"),
    (ItemInput("x" * 257), "invalid_item_id: item_id has 257 characters"),
    (ItemInput("x", "a\0"), "invalid_title: title contains the character NUL"),
    (ItemInput("x", categories=["ok", ""]), "invalid_categories: a category is empty"),
    (ItemInput("x", categories=["c"] * 101), "invalid_categories: 101 given"),
    (ItemInput("x", attributes={"p": float("nan")}), "invalid_attributes: attribute 'p' is nan"),
    (ItemInput("x", attributes={"p\0": 1}), "invalid_attributes: attribute 'p\\x00' contains"),
    (ItemInput("x", attributes={"p": "\ud800"}), "invalid_attributes: attribute 'p' contains"),
    (ItemInput("x", created_at=float("inf")), "invalid_created_at: created_at is inf"),
    (ItemInput("x", attributes={"p": 10**5000}), "invalid_attributes: attribute 'p' is a huge"),
    (ItemInput("x", created_at=-2.5e11), "invalid_created_at: created_at is -250000000000.0"),
    (ItemInput("x", created_at=1e15), "invalid_created_at: created_at is 1000000000000000.0"),
]


def test_bad_items_are_named_and_good_ones_of_the_batch_kept(connection, database_url):
    items = [ItemInput("good"), *[item for item, _ in BAD], ItemInput("🎬 '\"", "%s \\ ''")]
    results = in_pool(database_url, lambda pool: upsert_items(pool, items))
    assert [result.status for result in results] == ["created", *["rejected"] * len(BAD), "created"]
    for result, (_, reason) in zip(results[1:-1], BAD, strict=True):
        assert result.reason.startswith(reason)
    assert read_catalogue(connection).item_ids == ["good", "🎬 '\""]


def test_an_id_twice_in_a_batch(connection, database_url):
    items = [ItemInput("a", "first"), ItemInput("a", "second")]
    results = in_pool(database_url, lambda pool: upsert_items(pool, items))
    assert [result.status for result in results] == ["created", "created"]
    assert b'"title": "second"' in read_catalogue(connection).fields[0]


def test_retire(connection, database_url):
    async def work(pool):
        await upsert_items(pool, [ItemInput("a")])
        before = (await changed_items(pool, 0)).watermark
        answers = [await retire_item(pool, item_id) for item_id in ("a", "a", "b", "x\0")]
        return answers, await changed_items(pool, before)

    answers, changed = in_pool(database_url, work)
    assert answers == [True, False, None, None]
    assert (changed.item_ids, changed.available.tolist()) == (["a"], [False])


def test_an_item_after_the_refresh_has_an_age_and_no_events(sample_url):
    async def work(pool):
        with connect(sample_url) as connection:
            watermark = read_catalogue(connection).watermark
        await upsert_items(pool, [ItemInput("new", "New", ["Drama"], created_at=1e9)])
        return await changed_items(pool, watermark)

    changed = in_pool(sample_url, work)
    assert changed.item_ids == ["new"]
    features = dict(zip(names("item"), changed.features[0].tolist(), strict=True))
    assert {features[name] for name in features if name.startswith("item_events")} == {0}
    age = features["item_age_days"]
    assert age == pytest.approx((changed.features_as_of - 1e9) / 86_400)
    assert changed.fields == [b'{"title": "New", "categories": ["Drama"]}']


def test_nothing_changed(connection, database_url):
    changed = in_pool(database_url, lambda pool: changed_items(pool, 5))
    assert (changed.item_ids, changed.watermark) == ([], 5)
    assert changed.features.shape == (0, len(names("item")))


def test_a_follower_misses_nothing_whatever_commits_first(database_url):
    """Slow and fast writers of items, through the API and plain SQL, and a follower."""
    stop = threading.Event()
    seen = {}

    def write(name):
        with connect(database_url) as connection:
            for number in range(15):
                connection.execute(
                    "insert into items (item_id, title) values (%s, '0')"
                    " on conflict (item_id) do update set title = excluded.title || %s",
                    (f"{name}{number % 5}", str(number)),
                )
                if name == "slow":
                    connection.execute("select pg_sleep(0.02)")
                connection.commit()

    async def follow(pool):
        watermark = 0
        while True:
            last = stop.is_set()
            changed = await changed_items(pool, watermark)
            watermark = changed.watermark
            seen.update(zip(changed.item_ids, changed.fields, strict=True))
            if last:
                return

    follower = threading.Thread(target=in_pool, args=(database_url, follow))
    writers = [threading.Thread(target=write, args=(name,)) for name in ("slow", "fast", "third")]
    for thread in (follower, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    follower.join()
    with connect(database_url) as connection:
        catalogue = read_catalogue(connection)
    assert seen == dict(zip(catalogue.item_ids, catalogue.fields, strict=True))
    assert len(seen) == 15
