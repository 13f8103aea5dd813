"""Releases: built aside, checked, published at once; nothing damaged or foreign gets in."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import tiny_models
from tiny_runs import write_run

from features.database import connect
from features.errors import ReleaseError
from features.states import Catalogue, cold_state
from features.store import read_catalogue, states_as_of
from ranking.onnx_model import OnnxModel
from ranking.release import (
    ReleaseConfig,
    build_release,
    current_release,
    list_releases,
    load_ranker,
    load_release,
    open_pipeline,
    promote,
    release_path,
    rollback,
)
from ranking.release.manifest import sha256
from ranking.retrieval.attributes import learn_attributes
from ranking.retrieval.index import IndexConfig
from ranking.retrieval.tower import OnnxItemTower
from ranking.types import Query

OLD, NEW = "2026-01-02T03-04-05-0001", "2026-01-02T03-04-06-0002"


@pytest.fixture(scope="module")
def database(shared_sample_url: str) -> Iterator[psycopg.Connection[Any]]:
    with connect(shared_sample_url) as connection:
        yield connection


@pytest.fixture(scope="module")
def catalogue(database: psycopg.Connection[Any]) -> Catalogue:
    return read_catalogue(database)


@pytest.fixture(scope="module")
def built(
    database: psycopg.Connection[Any],
    catalogue: Catalogue,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A release directory; copy it before damaging it."""
    home = tmp_path_factory.mktemp("home")
    run = write_run(home / "run", catalogue)
    release = build_release(database, run, home, ReleaseConfig(check_users=20))
    return home / "releases" / release


@pytest.fixture
def home(built: Path, tmp_path: Path) -> Path:
    """A home with two releases, the second one current, the first one before it."""
    for name in (OLD, NEW):
        path = tmp_path / "releases" / name
        shutil.copytree(built, path)
        edit_manifest(path, release=name)
        promote(tmp_path, name)
    return tmp_path


def edit_manifest(path: Path, **changes: object) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | changes))


def rehash(path: Path, name: str) -> None:
    files = json.loads((path / "manifest.json").read_text())["files"]
    edit_manifest(path, files=files | {name: sha256(path / name)})


def test_a_release_holds_what_the_design_says_and_is_current(built: Path) -> None:
    home = built.parent.parent
    manifest = json.loads((built / "manifest.json").read_text())
    assert current_release(home) == built.name == manifest["release"]
    assert list_releases(home) == [built.name]
    assert {path.name for path in built.iterdir()} == {*manifest["files"], "manifest.json"}
    verified = manifest["verified"]
    assert verified["requests"] == 20
    assert verified["ann_recall"] == 1.0
    assert set(verified["parity"]) == {"item_tower.onnx", "user_tower.onnx", "ranker.onnx"}
    assert [path.name for path in built.parent.glob(".*")] == [".lock"]
    assert not any(path.suffix in (".pkl", ".pickle", ".pt") for path in built.iterdir())


def test_loading_gives_the_arrays_of_the_database_mapped_and_read_only(
    built: Path, catalogue: Catalogue
) -> None:
    release = load_release(built.parent / "current")
    table = release.table
    assert release.id == built.name
    assert release.training["holdout"] == "last"
    assert table.ids.ids(np.arange(0, 9000, 500)) == catalogue.item_ids[0:9000:500]
    assert (table.keys == catalogue.item_keys).all()
    assert (table.items.available == catalogue.available).all()
    assert table.watermark == catalogue.watermark
    columns = [table.category_names.index(name) for name in catalogue.categories[5]]
    assert table.items.categories[5].sum() == len(columns)
    assert table.items.categories[5, columns].all()
    with pytest.raises(ValueError, match="read-only"):
        table.items.vectors[0, 0] = 1.0


def test_its_pipeline_answers_known_and_unknown_users(
    built: Path, database: psycopg.Connection[Any]
) -> None:
    pipeline = open_pipeline(load_release(built))
    now = time.time()
    (state,) = states_as_of(database, np.array([1]), np.array([now]))
    known, unknown = pipeline.recommend(
        [Query(state.user_id, 20, now), Query("nobody", 20, now)],
        [state, cold_state("nobody", now)],
    )
    assert len(known.items) == len(unknown.items) == 20
    assert known.release == built.name
    assert known.counts["seen"] > 0
    fields = json.loads(pipeline.catalogue.fields(known.items[0].row))
    assert {"title", "categories"} <= set(fields)
    seen = set(pipeline.catalogue.rows_of_keys(state.seen_keys).tolist())
    assert not seen & {item.row for item in known.items}


def test_the_ranker_can_be_loaded_alone(built: Path) -> None:
    assert load_ranker(built)._model.outputs == ("scores",)


def test_items_that_came_after_training_get_vectors_from_the_item_tower(
    database: psycopg.Connection[Any], catalogue: Catalogue, tmp_path: Path
) -> None:
    n = len(catalogue.item_keys) - 7
    run = write_run(tmp_path / "run", catalogue, n)
    release = build_release(database, run, tmp_path, ReleaseConfig(check_users=2))
    table = load_release(release_path(tmp_path, release)).table
    assert len(table.items) == n + 7
    vocabulary = learn_attributes(catalogue.fields, catalogue.categories)
    tower = OnnxItemTower(OnnxModel(run / "item_tower.onnx"), vocabulary)
    wanted = tower(catalogue.fields[n:], catalogue.categories[n:])
    assert table.items.vectors[n:] == pytest.approx(wanted, abs=1e-5)
    assert (table.items.vectors[:n] == np.load(run / "item_vectors.npy")).all()
    assert (table.items.neighbours[n:] == -1).all()


def test_every_file_is_guarded_against_every_kind_of_damage(home: Path) -> None:
    path = home / "releases" / OLD
    names = sorted(json.loads((path / "manifest.json").read_text())["files"])
    assert len(names) >= 20
    for name in names:
        file = path / name
        content = file.read_bytes()
        flipped = bytearray(content)
        flipped[len(content) // 2] ^= 1
        for damage in (bytes(flipped), content[:-1], content + b"\0", b""):
            file.write_bytes(damage)
            with pytest.raises(ReleaseError, match=re.escape(f"{name} is damaged")):
                load_release(path)
        file.unlink()
        with pytest.raises(ReleaseError, match=re.escape(f"{name} is missing")):
            load_release(path)
        file.write_bytes(content)
    load_release(path)


def test_a_damaged_release_is_not_promoted_and_the_old_one_stays(home: Path) -> None:
    with (home / "releases" / OLD / "index.faiss").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")
    with pytest.raises(ReleaseError, match=rf"{OLD}: index\.faiss is damaged"):
        promote(home, OLD)
    with pytest.raises(ReleaseError, match=r"index\.faiss"):
        rollback(home)
    assert current_release(home) == NEW


def test_files_beside_the_manifest_links_and_odd_names_are_refused(
    home: Path, tmp_path: Path
) -> None:
    path = home / "releases" / OLD
    (path / "extra.npy").write_bytes(b"")
    with pytest.raises(ReleaseError, match=r"extra\.npy is not in manifest\.json"):
        load_release(path)
    (path / "extra.npy").unlink()
    outside = tmp_path / "outside.onnx"
    (path / "ranker.onnx").rename(outside)
    (path / "ranker.onnx").symlink_to(outside)
    with pytest.raises(ReleaseError, match=r"ranker\.onnx is no regular file"):
        load_release(path)
    (path / "ranker.onnx").unlink()
    outside.rename(path / "ranker.onnx")
    files = json.loads((path / "manifest.json").read_text())["files"]
    for name in ("../outside.onnx", "/etc/passwd", "a/b.npy", ".hidden", "manifest.json", ""):
        edit_manifest(path, files=files | {name: "0" * 64})
        with pytest.raises(ReleaseError, match="which is no file name"):
            load_release(path)
    edit_manifest(path, files=files | {"ids.npy": "short"})
    with pytest.raises(ReleaseError, match=r"no sha256 for ids\.npy"):
        load_release(path)
    edit_manifest(path, files={name: files[name] for name in files if name != "index.faiss"})
    with pytest.raises(ReleaseError, match=r"does not list index\.faiss"):
        load_release(path)


def test_a_manifest_of_another_kind_is_refused(home: Path) -> None:
    path = home / "releases" / OLD
    good = (path / "manifest.json").read_text()
    edit_manifest(path, spec_hash="f" * 64)
    with pytest.raises(ReleaseError, match="feature spec ffffffffffff, this version"):
        promote(home, OLD)
    edit_manifest(path, format=2)
    with pytest.raises(ReleaseError, match="format 2, expected 1"):
        load_release(path)
    (path / "manifest.json").write_text(good.replace(OLD, NEW))
    with pytest.raises(ReleaseError, match=f"belongs to release '{NEW}'"):
        load_release(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(ReleaseError, match="cannot be read"):
        load_release(path)
    (path / "manifest.json").unlink()
    with pytest.raises(ReleaseError, match=r"has no manifest\.json"):
        load_release(path)


def test_arrays_that_do_not_fit_together_are_refused(home: Path) -> None:
    path = home / "releases" / OLD
    available = np.load(path / "available.npy")
    np.save(path / "available.npy", available[:-1])
    rehash(path, "available.npy")
    with pytest.raises(ReleaseError, match=r"available\.npy has shape"):
        load_release(path)
    np.save(path / "available.npy", available.astype(np.int32))
    rehash(path, "available.npy")
    with pytest.raises(ReleaseError, match=r"available\.npy holds int32 with 1 axes"):
        load_release(path)
    np.save(path / "available.npy", np.array([None] * 3), allow_pickle=True)
    rehash(path, "available.npy")
    with pytest.raises(ReleaseError, match=r"available\.npy is no array"):
        load_release(path)


def test_promote_and_rollback(home: Path) -> None:
    assert list_releases(home) == [NEW, OLD]
    assert current_release(home) == NEW
    assert rollback(home) == OLD
    assert current_release(home) == OLD
    assert rollback(home) == NEW
    promote(home, NEW)
    assert current_release(home) == NEW
    assert rollback(home) == OLD
    assert (home / "releases" / "current").readlink() == Path(OLD)


@pytest.mark.parametrize(
    "name", ["nothing", "../releases", "current", "", "2026-01-02T03-04-05-9999"]
)
def test_only_existing_releases_can_be_promoted(home: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="no release"):
        promote(home, name)
    assert current_release(home) == NEW


def test_without_a_previous_release_rollback_says_so(built: Path, tmp_path: Path) -> None:
    assert list_releases(tmp_path) == []
    assert current_release(tmp_path) is None
    shutil.copytree(built, tmp_path / "releases" / OLD)
    edit_manifest(tmp_path / "releases" / OLD, release=OLD)
    promote(tmp_path, OLD)
    with pytest.raises(ReleaseError, match="no previous release"):
        rollback(tmp_path)


def refuse(
    database: psycopg.Connection[Any],
    run: Path,
    home: Path,
    message: str,
    config: ReleaseConfig | None = None,
) -> None:
    before = sorted(path.name for path in (home / "releases").iterdir())
    with pytest.raises(ReleaseError, match=message):
        build_release(database, run, home, config or ReleaseConfig(check_users=3))
    assert current_release(home) == NEW
    assert sorted(path.name for path in (home / "releases").iterdir()) == before


def test_a_build_that_fails_a_check_leaves_nothing(
    home: Path, database: psycopg.Connection[Any], catalogue: Catalogue
) -> None:
    worse = {"max_difference": 0.5, "mean_difference": 0.1, "scale": 1.0, "values": 9}
    good = {"max_difference": 0.0, "mean_difference": 0.0, "scale": 1.0, "values": 9}
    parity = {"item_tower.onnx": good, "user_tower.onnx": good, "ranker.onnx": worse}
    refuse(
        database,
        write_run(home / "parity", catalogue, parity=parity),
        home,
        r"ranker\.onnx differs from torch by 0\.5",
    )
    refuse(
        database, write_run(home / "spec", catalogue, spec_hash="0" * 64), home, "feature spec 0000"
    )
    run = write_run(home / "other", catalogue)
    np.save(run / "item_keys.npy", catalogue.item_keys + 1_000_000)
    refuse(database, run, home, "trained on another database")
    (run / "ranker.onnx").write_bytes(b"no model")
    np.save(run / "item_keys.npy", catalogue.item_keys)
    refuse(database, run, home, r"ranker\.onnx cannot be loaded")
    tiny_models.ranker(run / "ranker.onnx", 8, constant=np.nan)
    refuse(database, run, home, "not finite")
    vectors = np.load(run / "item_vectors.npy")
    tiny_models.ranker(run / "ranker.onnx", 8)
    weak = ReleaseConfig(
        check_users=20, min_recall=1.0, index=IndexConfig(kind="ivf", ivf_lists=200, ivf_probes=1)
    )
    refuse(database, run, home, r"index\.faiss finds 0\.\d+ of the exact 200", weak)
    vectors[4] = np.nan
    np.save(run / "item_vectors.npy", vectors)
    with pytest.raises(Exception, match="row 4 is not finite"):
        build_release(database, run, home)
    (run / "trending.npy").unlink()
    refuse(database, run, home, "no complete model run")
