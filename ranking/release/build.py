"""Build a release from a model run and the database: aside, checked, published by one rename.

Whatever fails, fails before the rename: a half-built release never has a name, and the current
release stays. What was checked, and with what result, stands in ``manifest.json`` under
``verified``.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from features.catalogue import snapshot
from features.encode import encode_items
from features.errors import ReleaseError
from features.spec import spec_hash
from features.store import read_catalogue, states_as_of
from ranking.covisits import covisit_arrays
from ranking.id_map import IdMap
from ranking.onnx_model import OnnxModel
from ranking.release.load import (
    CATEGORIES,
    CONFIG,
    INDEX,
    ITEM_TOWER,
    RANKER,
    TRAINING,
    USER_TOWER,
    ReleaseConfig,
    load_release,
    open_pipeline,
)
from ranking.release.manifest import sync, write_manifest
from ranking.release.store import promote
from ranking.retrieval.attributes import ItemAttributes
from ranking.retrieval.exact import ExactIndex, recall
from ranking.retrieval.index import build_index
from ranking.retrieval.retriever import RetrievalConfig
from ranking.retrieval.tower import OnnxItemTower
from ranking.types import FloatArray, Progress, Query, RowArray

if TYPE_CHECKING:
    import psycopg

    from features.states import Catalogue, UserState

_STEPS = ("read", "arrays", "index", "check", "publish")
_RUN_ARRAYS = (
    "item_keys",
    "item_vectors",
    "id_vectors",
    "neighbours",
    "neighbour_scores",
    "ease",
    "ease_weights",
    "trending",
    "trending_scores",
)
_CHECK_ITEMS = 20


@dataclass(frozen=True, slots=True)
class _Run:
    """What training left in its directory."""

    path: Path
    training: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


def build_release(
    connection: psycopg.Connection[Any],
    run_dir: Path,
    home: Path,
    config: ReleaseConfig | None = None,
    progress: Progress | None = None,
) -> str:
    """Build, check, publish and promote a release.

    Parameters
    ----------
    connection : psycopg.Connection
        Of :func:`features.database.connect`, the database that the run was trained on; features
        are refreshed.
    run_dir : Path
        Of :func:`ranking.training.train`. Items that came since get vectors from the item tower.
    home : Path
        The release is written to ``home/releases/<id>``.
    config : ReleaseConfig or None
    progress : callable or None
        Called as (step, done, total).

    Returns
    -------
    str
        Id of the release, which is now the current one.

    Raises
    ------
    ReleaseError
        If the run is incomplete, of another spec or of another database, or if a check fails;
        the current release stays.
    """
    config = config or ReleaseConfig()
    release = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{secrets.token_hex(2)}"
    seconds: dict[str, float] = {}
    last = time.perf_counter()

    def step(done: str) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds[done] = round(now - last, 3)
        last = now
        if progress:
            progress(f"release: {done}", _STEPS.index(done) + 1, len(_STEPS))

    run = _read_run(run_dir)
    config = config.model_copy(update={"retrieval": _retrieval(config, run)})
    with snapshot(connection):
        catalogue = read_catalogue(connection)
        covisits = covisit_arrays(connection, catalogue.item_keys)
    states = _check_states(connection, config)
    step("read")
    releases = home / "releases"
    releases.mkdir(parents=True, exist_ok=True)
    outer = Path(tempfile.mkdtemp(prefix=".building-", dir=releases))
    aside = outer / release
    try:
        aside.mkdir(mode=0o755)
        verified: dict[str, Any] = {"parity": _check_parity(run, config)}
        vectors = _write_arrays(aside, run, catalogue, covisits)
        step("arrays")
        assert config.retrieval is not None
        index = build_index(vectors, config.retrieval.index)
        index.save(aside / INDEX)
        (aside / CONFIG).write_text(config.model_dump_json(indent=2) + "\n")
        step("index")
        facts = {
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": run.training["run"],
            "spec_hash": spec_hash(),
            "items": len(vectors),
            "index": index.kind,
            "watermark": catalogue.watermark,
            "features_as_of": catalogue.features_as_of,
        }
        write_manifest(aside, release, facts)
        verified |= _check(aside, config, states)
        step("check")
        write_manifest(aside, release, {**facts, "verified": verified, "seconds": seconds})
        aside.rename(releases / release)
        sync(releases)
    finally:
        shutil.rmtree(outer, ignore_errors=True)
    promote(home, release)
    step("publish")
    return release


def _read_run(path: Path) -> _Run:
    try:
        training = json.loads((path / TRAINING).read_bytes())
        arrays = {name: np.load(path / f"{name}.npy", allow_pickle=False) for name in _RUN_ARRAYS}
    except (OSError, ValueError) as error:
        raise ReleaseError(
            f"{path} is no complete model run: {error}; run 'shortlist train'"
        ) from error
    if training.get("spec_hash") != spec_hash():
        raise ReleaseError(
            f"{path.name}/{TRAINING} has feature spec {str(training.get('spec_hash'))[:12]}, this "
            f"version {spec_hash()[:12]}; run 'shortlist train'"
        )
    return _Run(path, training, arrays)


def _retrieval(config: ReleaseConfig, run: _Run) -> RetrievalConfig:
    """Return the coarse stage's config: the ranker learnt on the candidates of training's."""
    trained = RetrievalConfig.model_validate(run.training["config"]["retrieval"])
    retrieval = config.retrieval or trained
    return retrieval.model_copy(update={"index": config.index}) if config.index else retrieval


def _check_parity(run: _Run, config: ReleaseConfig) -> dict[str, Any]:
    """Compare what torch and ONNX Runtime gave for the same inputs when the run was exported."""
    parity: dict[str, Any] = run.training["parity"]
    for name in (ITEM_TOWER, USER_TOWER, RANKER):
        measured = parity[name]
        limit = config.parity_tolerance * max(float(measured["scale"]), 1e-12)
        if not measured["max_difference"] <= limit:
            raise ReleaseError(
                f"{run.path.name}/{name} differs from torch by {measured['max_difference']:.2g}, "
                f"allowed {limit:.2g}; train again"
            )
    return parity


def _write_arrays(
    directory: Path,
    run: _Run,
    catalogue: Catalogue,
    covisits: tuple[NDArray[np.int32], FloatArray],
) -> FloatArray:
    """Write all arrays of the catalogue's N items and return their vectors (N, d)."""
    for name in (ITEM_TOWER, USER_TOWER, RANKER, TRAINING):
        shutil.copyfile(run.path / name, directory / name)
    N, keys = len(catalogue.item_keys), run.arrays["item_keys"]
    place = np.searchsorted(catalogue.item_keys, keys)  # row of the run -> row of the release
    known = place < N
    if not known.all() or not (catalogue.item_keys[place] == keys).all():
        raise ReleaseError(
            f"{run.path.name}: item_keys.npy has items that the database has not; was it trained "
            "on another database? Run 'shortlist train'"
        )
    trained = run.arrays["item_vectors"]
    id_vectors = np.zeros((N, run.arrays["id_vectors"].shape[1]), np.float32)
    id_vectors[place] = run.arrays["id_vectors"]
    vocabulary = ItemAttributes.from_dict(run.training["item_attributes"])
    tower = OnnxItemTower(OnnxModel(run.path / ITEM_TOWER), vocabulary)
    vectors = tower(catalogue.fields, catalogue.categories, id_vectors)
    # What torch computed stays as it is; the tower gives the items that came since.
    vectors[place] = trained
    neighbours, scores = _moved(run, "neighbours", "neighbour_scores", place, N)
    ease, ease_weights = _moved(run, "ease", "ease_weights", place, N)
    names = sorted({name for some in catalogue.categories for name in some})
    columns = {name: column for column, name in enumerate(names)}
    flags = np.zeros((N, len(names)), np.uint8)
    for row, some in enumerate(catalogue.categories):
        flags[row, [columns[name] for name in some]] = 1
    offsets = np.zeros(N + 1, np.int64)
    np.cumsum([len(text) for text in catalogue.fields], out=offsets[1:])
    arrays = {
        "item_keys": catalogue.item_keys.astype(np.int64),
        "item_vectors": vectors,
        "item_features": encode_items(catalogue.features),
        "item_categories": flags,
        "created": catalogue.created_at.astype(np.float64),
        "available": catalogue.available.astype(np.bool_),
        "neighbours": neighbours,
        "neighbour_scores": scores,
        "ease": ease,
        "ease_weights": ease_weights,
        "covisits": covisits[0],
        "covisit_pairs": covisits[1],
        "field_offsets": offsets,
        "fields": np.frombuffer(b"".join(catalogue.fields), np.uint8),
        "trending": place[run.arrays["trending"]].astype(np.int32),
        "trending_scores": run.arrays["trending_scores"].astype(np.float32),
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array, allow_pickle=False)
    IdMap.from_ids(catalogue.item_ids).save(directory)
    (directory / CATEGORIES).write_text(json.dumps(names) + "\n")
    return vectors


def _moved(
    run: _Run, rows: str, scores: str, place: RowArray, N: int
) -> tuple[NDArray[np.int32], FloatArray]:
    """Return lists of neighbours in the rows of the release."""
    old = run.arrays[rows]
    neighbours = np.full((N, old.shape[1]), -1, np.int32)
    found = np.zeros(neighbours.shape, np.float32)
    neighbours[place] = np.where(old >= 0, place[old], -1)
    found[place] = np.where(old >= 0, run.arrays[scores], 0.0)
    return neighbours, found


def _check_states(connection: psycopg.Connection[Any], config: ReleaseConfig) -> list[UserState]:
    """Return the states of some users now."""
    rows = connection.execute(
        "select user_key from users order by user_key limit %s", (config.check_users,)
    ).fetchall()
    keys: RowArray = np.array([key for (key,) in rows], np.int64)
    now = np.full(len(keys), time.time())
    return states_as_of(connection, keys, now, config.pipeline.history_limit)


def _check(directory: Path, config: ReleaseConfig, states: list[UserState]) -> dict[str, Any]:
    """Load the release as a service would, answer requests and measure the index."""
    release = load_release(directory)
    pipeline = open_pipeline(release)
    now = time.time()
    queries = [Query(state.user_id, _CHECK_ITEMS, now) for state in states]
    milliseconds = []
    for query, state in zip(queries, states, strict=True):
        (ranking,) = pipeline.recommend([query], [state])
        milliseconds.append(sum(ranking.timing_ms.values()))
        bad = [item.item_id for item in ranking.items if not np.isfinite(item.score)]
        if bad:
            raise ReleaseError(
                f"{RANKER} gives user {query.user_id!r} a score for item {bad[0]!r} that is not "
                "finite; train again"
            )
        if not ranking.items and ranking.counts["ranked"]:
            raise ReleaseError(f"user {query.user_id!r} has candidates but gets no items")
    vectors = pipeline.retrieve(queries, states).user_vectors if queries else np.empty((0, 1))
    k = min(config.recall_at, len(release.table.items))
    found = 1.0
    if queries:
        exact = ExactIndex(release.table.items.vectors)
        found = recall(pipeline.index, vectors.astype(np.float32), k, exact)
    if found < config.min_recall:
        raise ReleaseError(
            f"{INDEX} finds {found:.3f} of the exact {k} nearest items, expected at least "
            f"{config.min_recall}; raise index.ivf_probes or index.hnsw_ef_search"
        )
    return {
        "requests": len(queries),
        "ann_recall": round(found, 4),
        "ann_recall_at": k,
        "ms_p50": round(float(np.median(milliseconds)), 3) if milliseconds else None,
    }
