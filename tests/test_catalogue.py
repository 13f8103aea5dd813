"""Live changes over a release's items: seen at once by new requests, never by running ones."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from worlds import make_table

from features.spec import names
from features.states import Catalogue
from ranking.catalogue import LiveCatalogue

CATEGORIES = ("c0", "c1", "c2", "c3")


def change(
    keys: list[int], available: bool = True, categories: tuple[str, ...] = ("c1",), mark: int = 1
) -> Catalogue:
    n = len(keys)
    return Catalogue(
        item_keys=np.array(keys, np.int64),
        item_ids=[f"i{key}" for key in keys],
        fields=[json.dumps({"title": f"new {key}"}).encode() for key in keys],
        categories=[categories] * n,
        created_at=np.full(n, 5.0),
        available=np.full(n, available),
        features=np.full((n, len(names("item"))), np.nan, np.float32),
        features_as_of=9.0,
        features_snapshot="",
        watermark=mark,
    )


def embed(fields: list[bytes], categories: list[tuple[str, ...]]) -> np.ndarray:
    return np.full((len(fields), 8), 0.5, np.float32)


@pytest.fixture
def catalogue() -> LiveCatalogue:
    return LiveCatalogue(make_table(30), embed)


def test_ids_keys_rows_and_fields_of_a_release(catalogue: LiveCatalogue) -> None:
    assert catalogue.rows(["i10", "i0", "nope"]).tolist() == [10, 0, -1]
    assert catalogue.id(7) == "i7"
    assert json.loads(catalogue.fields(7)) == {"title": "title 7"}
    assert catalogue.rows_of_keys(np.array([109, 100, 3, 5000])).tolist() == [9, 0, -1, -1]
    assert catalogue.keys(np.array([0, 29])).tolist() == [100, 129]
    assert catalogue.key(29) == 129


def test_an_unavailable_item_and_its_return(catalogue: LiveCatalogue) -> None:
    before = catalogue.items
    held = before.available.copy()
    was = bool(before.available[4])
    assert catalogue.apply(change([104], available=not was, mark=7)) == (1, 0)
    assert catalogue.items.available[4] == (not was)
    assert (before.available == held).all()
    assert catalogue.watermark == 7
    catalogue.apply(change([104], available=was))
    assert catalogue.items.available[4] == was


def test_changed_fields_and_categories(catalogue: LiveCatalogue) -> None:
    before = catalogue.items
    catalogue.apply(change([103], categories=("c0", "c2", "unknown")))
    assert json.loads(catalogue.fields(3)) == {"title": "new 103"}
    assert catalogue.items.categories[3].tolist() == [1, 0, 1, 0]
    assert catalogue.items.vectors is before.vectors
    assert before.categories is not catalogue.items.categories


def test_new_items_are_appended_behind_what_readers_hold(catalogue: LiveCatalogue) -> None:
    held = catalogue.items
    copies = {name: getattr(held, name).copy() for name in ("vectors", "available", "neighbours")}
    for start in range(500, 900, 100):
        keys = list(range(start, start + 100))
        assert catalogue.apply(change(keys)) == (0, 100)
    items = catalogue.items
    assert len(items) == 430
    assert len(held) == 30
    for name, copy in copies.items():
        assert (getattr(held, name) == copy).all()
        assert (getattr(items, name)[:30] == copy).all()
    assert (items.vectors[30:] == 0.5).all()
    assert (items.neighbours[30:] == -1).all()
    assert items.features[30:].shape == (400, len(names("item")))
    assert np.isfinite(items.features).all()
    assert items.categories[30].tolist() == [0, 1, 0, 0]
    assert catalogue.row("i555") == 30 + 55
    assert catalogue.id(30 + 55) == "i555"
    assert catalogue.rows_of_keys(np.array([555, 100])).tolist() == [85, 0]
    assert catalogue.keys(np.array([85, 0])).tolist() == [555, 100]
    assert catalogue.key(85) == 555
    catalogue.apply(change([555], available=False))
    assert not catalogue.items.available[85]
    assert len(catalogue.items) == 430


def test_one_batch_may_hold_old_and_new_items(catalogue: LiveCatalogue) -> None:
    assert catalogue.apply(change([700, 101, 701])) == (1, 2)
    assert catalogue.rows(["i700", "i701"]).tolist() == [30, 31]
    assert catalogue.row("i101") == -1  # the release knows key 101 as i1


def test_without_an_item_tower_new_items_are_left_out() -> None:
    catalogue = LiveCatalogue(make_table(5))
    assert catalogue.apply(change([900, 101])) == (1, 0)
    assert len(catalogue.items) == 5


def test_an_empty_release_takes_its_first_items() -> None:
    catalogue = LiveCatalogue(make_table(0), embed)
    assert catalogue.rows_of_keys(np.array([3])).tolist() == [-1]
    catalogue.apply(change([3, 4]))
    assert catalogue.rows_of_keys(np.array([4, 5])).tolist() == [1, -1]


def test_readers_beside_a_writer_always_see_a_whole_state(catalogue: LiveCatalogue) -> None:
    stop = threading.Event()
    faults: list[str] = []

    def read() -> None:
        while not stop.is_set():
            items = catalogue.items
            n = len(items)
            for name in ("available", "created", "categories", "features", "neighbours"):
                if len(getattr(items, name)) != n:
                    faults.append(name)
            if not (items.vectors[30:] == 0.5).all() or catalogue.id(n - 1) == "":
                faults.append("vectors")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(1000, 3000, 10):
        catalogue.apply(change(list(range(start, start + 10)), mark=start))
    stop.set()
    for reader in readers:
        reader.join()
    assert faults == []
    assert len(catalogue.items) == 2030


def test_spread_places_categories_by_name(catalogue: LiveCatalogue) -> None:
    spread = catalogue.spread(["c3", "other", "c0"], np.array([2, 9, 4], np.float32))
    assert spread.tolist() == [4, 0, 0, 2]
    assert catalogue.spread([], np.empty(0, np.float32)).tolist() == [0, 0, 0, 0]
    assert catalogue.columns(["c2", "nope"]).tolist() == [2]
