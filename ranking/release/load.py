"""From a release directory to a pipeline that answers.

Arrays are mapped read-only, so that all replicas of a machine share their pages, and nothing is
read before its sha256 was checked.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from features.errors import ReleaseError
from features.spec import names, spec_hash
from ranking.arrays import map_array
from ranking.catalogue import ItemTable, LiveCatalogue
from ranking.fine.inputs import ranker_inputs
from ranking.fine.ranker import OnnxRanker, Ranker
from ranking.freshness import MaxAges
from ranking.id_map import FILES as ID_FILES
from ranking.id_map import IdMap
from ranking.onnx_model import OnnxConfig, OnnxModel
from ranking.pipeline import ItemFeatures, Pipeline, PipelineConfig, release_features
from ranking.release.manifest import Manifest, read_manifest, verify_files
from ranking.retrieval.attributes import ItemAttributes
from ranking.retrieval.index import IndexConfig, load_index
from ranking.retrieval.retriever import RetrievalConfig, Retriever
from ranking.retrieval.tower import OnnxItemTower, OnnxUserTower
from ranking.types import Items

ITEM_TOWER, USER_TOWER, RANKER = "item_tower.onnx", "user_tower.onnx", "ranker.onnx"
INDEX, CONFIG, CATEGORIES, TRAINING = (
    "index.faiss",
    "config.json",
    "categories.json",
    "training.json",
)
ARRAYS = {
    "item_keys": (np.int64, 1),
    "item_vectors": (np.float32, 2),
    "item_features": (np.float32, 2),
    "item_categories": (np.uint8, 2),
    "created": (np.float64, 1),
    "available": (np.bool_, 1),
    "neighbours": (np.int32, 2),
    "neighbour_scores": (np.float32, 2),
    "ease": (np.int32, 2),
    "ease_weights": (np.float32, 2),
    "covisits": (np.int32, 2),
    "covisit_pairs": (np.float32, 2),
    "field_offsets": (np.int64, 1),
    "fields": (np.uint8, 1),
    "trending": (np.int32, 1),
    "trending_scores": (np.float32, 1),
}
FILES = frozenset(
    {
        *(f"{name}.npy" for name in ARRAYS),
        *ID_FILES,
        ITEM_TOWER,
        USER_TOWER,
        RANKER,
        INDEX,
        CONFIG,
        CATEGORIES,
        TRAINING,
    }
)
_ITEM_ARRAYS = tuple(ARRAYS)[:10]


class ReleaseConfig(BaseModel):
    """How a release is built, checked and run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    retrieval: RetrievalConfig | None = Field(
        default=None, description="The coarse stage; none: as in the training of the ranker."
    )
    index: IndexConfig | None = Field(
        default=None, description="The index; none: as in `retrieval`."
    )
    pipeline: PipelineConfig = Field(default=PipelineConfig(), description="Limits of a request.")
    parity_tolerance: float = Field(
        default=1e-3,
        gt=0,
        description="Largest difference between torch and ONNX Runtime, in standard deviations "
        "of the output.",
    )
    recall_at: int = Field(default=200, ge=1, description="Items at which ANN recall is measured.")
    min_recall: float = Field(
        default=0.95, ge=0, le=1, description="Least share of the exact nearest that ANN finds."
    )
    check_users: int = Field(
        default=256, ge=1, description="Users of the database whose requests are tried."
    )


@dataclass(frozen=True, slots=True)
class Release:
    """A release whose files were checked.

    Attributes
    ----------
    id : str
    path : Path
    manifest : Manifest
    config : ReleaseConfig
        As it was built; `retrieval` is set.
    training : dict
        What training recorded: holdout, seed, parity, seconds.
    table : ItemTable
        Its items.
    """

    id: str
    path: Path
    manifest: Manifest
    config: ReleaseConfig
    training: dict[str, Any]
    table: ItemTable


def check_release(path: Path) -> Manifest:
    """Check files, completeness and feature spec of a release directory, and load nothing.

    Raises
    ------
    ReleaseError
        With the file that is damaged, missing or surplus, or the spec that differs.
    """
    path = path.resolve()
    manifest = read_manifest(path)
    missing = sorted(FILES - set(manifest.files))
    if missing:
        raise ReleaseError(f"{path.name}: manifest.json does not list {missing[0]}; build it again")
    spec = str(manifest.facts.get("spec_hash"))
    if spec != spec_hash():
        raise ReleaseError(
            f"{path.name}: manifest.json has feature spec {spec[:12]}, this version "
            f"{spec_hash()[:12]}; train and build again"
        )
    verify_files(path, manifest)
    return manifest


def load_release(path: Path) -> Release:
    """Check a release directory (or a link to one) and map its arrays.

    Raises
    ------
    ReleaseError
        See :func:`check_release`; also if a file does not fit the others.
    """
    path = path.resolve()
    manifest = check_release(path)
    arrays = {name: _array(path, name) for name in ARRAYS}
    N = len(arrays["item_keys"])
    ids = IdMap.load(path)
    category_names = tuple(_json(path, CATEGORIES))
    expected: dict[str, tuple[int | None, ...]] = {
        **{name: (N, *(None,) * (ARRAYS[name][1] - 1)) for name in _ITEM_ARRAYS},
        "item_features": (N, len(names("item"))),
        "item_categories": (N, len(category_names)),
        "neighbour_scores": arrays["neighbours"].shape,
        "ease_weights": arrays["ease"].shape,
        "covisit_pairs": arrays["covisits"].shape,
        "field_offsets": (N + 1,),
        "trending_scores": arrays["trending"].shape,
    }
    for name, shape in expected.items():
        if not _fits(arrays[name].shape, shape):
            raise ReleaseError(
                f"{path.name}: {name}.npy has shape {arrays[name].shape}, expected {shape} "
                f"for {N} items; build it again"
            )
    if len(ids) != N:
        raise ReleaseError(f"{path.name}: ids.npy has {len(ids)} ids for {N} items")
    as_of = float(manifest.facts["features_as_of"])
    table = ItemTable(
        ids=ids,
        keys=arrays["item_keys"],
        field_text=arrays["fields"],
        field_offsets=arrays["field_offsets"],
        category_names=category_names,
        items=Items(
            vectors=arrays["item_vectors"],
            available=arrays["available"],
            created=arrays["created"],
            categories=arrays["item_categories"],
            features=arrays["item_features"],
            neighbours=arrays["neighbours"],
            neighbour_scores=arrays["neighbour_scores"],
            trending=arrays["trending"],
            trending_scores=arrays["trending_scores"],
            covisits=arrays["covisits"],
            covisit_pairs=arrays["covisit_pairs"],
            ease=arrays["ease"],
            ease_weights=arrays["ease_weights"],
            features_as_of=as_of,
        ),
        watermark=int(manifest.facts["watermark"]),
        features_as_of=as_of,
    )
    try:
        config = ReleaseConfig.model_validate(_json(path, CONFIG))
    except ValidationError as error:
        raise ReleaseError(f"{path.name}: {CONFIG} does not fit this version: {error}") from error
    return Release(manifest.release, path, manifest, config, _json(path, TRAINING), table)


def open_pipeline(
    release: Release,
    onnx: OnnxConfig | None = None,
    ranker: Ranker | None = None,
    item_features: ItemFeatures | None = None,
    max_ages: MaxAges | None = None,
) -> Pipeline:
    """Load the models of a release and connect all stages.

    Parameters
    ----------
    release : Release
    onnx : OnnxConfig or None
        How the models are run.
    ranker : Ranker or None
        Another place to run the ranker; None runs it here.
    item_features : callable or None
        See :class:`~ranking.pipeline.Pipeline`; None takes the release's.
    max_ages : MaxAges or None
        How old features may be; None: no limit.

    Raises
    ------
    ReleaseError
        If a model or the index cannot be loaded.
    """
    path, table = release.path, release.table
    assert release.config.retrieval is not None
    vocabulary = ItemAttributes.from_dict(release.training["item_attributes"])
    item_tower = OnnxItemTower(OnnxModel(path / ITEM_TOWER, onnx), vocabulary)
    index = load_index(path / INDEX, table.items.vectors, release.config.retrieval.index)
    return Pipeline(
        release=release.id,
        catalogue=LiveCatalogue(table, item_tower),
        retriever=Retriever(
            OnnxUserTower(OnnxModel(path / USER_TOWER, onnx)),
            table.items,
            release.config.retrieval,
            index,
        ),
        ranker=ranker or OnnxRanker(OnnxModel(path / RANKER, onnx)),
        build_inputs=ranker_inputs,
        config=release.config.pipeline,
        item_features=item_features or release_features,
        max_ages=max_ages,
    )


def load_ranker(path: Path, onnx: OnnxConfig | None = None) -> OnnxRanker:
    """Load the ranker of a release directory and nothing else of it, after checking all files.

    Raises
    ------
    ReleaseError
        See :func:`check_release`.
    """
    check_release(path)
    return OnnxRanker(OnnxModel(path.resolve() / RANKER, onnx))


def _array(path: Path, name: str) -> NDArray[Any]:
    dtype, axes = ARRAYS[name]
    try:
        array = map_array(path / f"{name}.npy")
    except ValueError as error:
        raise ReleaseError(f"{path.name}: {name}.npy is no array: {error}") from error
    if array.dtype != dtype or array.ndim != axes:
        raise ReleaseError(
            f"{path.name}: {name}.npy holds {array.dtype} with {array.ndim} axes, expected "
            f"{np.dtype(dtype)} with {axes}"
        )
    return array


def _fits(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(
        w is None or s == w for s, w in zip(shape, wanted, strict=True)
    )


def _json(path: Path, name: str) -> Any:  # noqa: ANN401  # whatever the file holds
    return json.loads((path / name).read_bytes())
