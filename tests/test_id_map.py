"""The id map against a dict, through a file and with awkward ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ranking.id_map
from features.errors import InputError
from ranking.id_map import FILES, IdMap

AWKWARD = ["", "a", "A", "\u00e9", "e\u0301", "🎬", "quote'\"", "x" * 5000, "1", "01", " 1", "☃"]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.text(max_size=8), unique=True, max_size=40), st.lists(st.text(max_size=8)))
def test_it_is_a_dict(ids: list[str], others: list[str]) -> None:
    ids = [item_id for item_id in ids if item_id.isprintable() or item_id.isascii()]
    expected = {item_id: row for row, item_id in enumerate(ids)}
    id_map = IdMap.from_ids(ids)
    assert len(id_map) == len(ids)
    asked = [*ids, *others]
    assert id_map.rows(asked).tolist() == [expected.get(item_id, -1) for item_id in asked]
    assert id_map.ids(np.arange(len(ids))) == ids


def test_a_saved_map_is_the_same_map(tmp_path: Path) -> None:
    IdMap.from_ids(AWKWARD).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(FILES)
    loaded = IdMap.load(tmp_path)
    assert loaded.ids(np.arange(len(AWKWARD))) == AWKWARD
    assert loaded.rows(AWKWARD).tolist() == list(range(len(AWKWARD)))
    assert loaded.row("missing") == -1


def test_an_empty_map_can_be_saved(tmp_path: Path) -> None:
    IdMap.from_ids([]).save(tmp_path)
    loaded = IdMap.load(tmp_path)
    assert len(loaded) == 0
    assert loaded.row("a") == -1


def test_a_lone_surrogate_is_unknown_and_no_error() -> None:
    assert IdMap.from_ids(["a", "?"]).rows(["\ud800", "?"]).tolist() == [-1, 1]


def test_an_id_that_occurs_twice_is_named() -> None:
    with pytest.raises(InputError, match="'b' occurs twice"):
        IdMap.from_ids(["a", "b", "c", "b"])


def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking.id_map, "_hash", lambda text: len(text))
    ids = [f"{n:03}" for n in range(50)] + ["long id"]
    id_map = IdMap.from_ids(ids)
    assert id_map.rows(ids).tolist() == list(range(51))
    assert id_map.row("xyz") == -1


def test_lookups_of_many_ids_are_fast_enough_for_a_request() -> None:
    ids = [f"item-{n}" for n in range(20_000)]
    id_map = IdMap.from_ids(ids)
    rows = np.random.default_rng(0).permutation(20_000)
    assert (id_map.rows([ids[row] for row in rows]) == rows).all()
