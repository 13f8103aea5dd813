"""Training of both stages from the database: ``shortlist train``.

The ranker must learn from candidates of a coarse model that has not seen the answers, else it
trusts the coarse score too much. So the towers are trained without the latest events of each
user, those events become the labels of the ranker, and then the towers are trained on with all
events, which moves their vectors little.

Sizes as in :mod:`ranking.types`.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from features.errors import InputError
from features.spec import spec_hash
from features.store import read_catalogue, read_interactions
from ranking.checkpoints import ASIDE, Checkpoints, checkpoints
from ranking.fine.examples import Examples, collect
from ranking.fine.export import RANKER, export_ranker
from ranking.fine.labels import held_back, labels, list_events
from ranking.fine.train import train_ranker
from ranking.lists import Lists, training_items
from ranking.passes import Pass
from ranking.processes import Hardware, hardware
from ranking.protocols import leave_last_out
from ranking.retrieval.attributes import item_attributes, learn_attributes
from ranking.retrieval.covisitation import covisitation
from ranking.retrieval.ease import ease
from ranking.retrieval.export import ITEM_TOWER, USER_TOWER, export_item_tower, export_user_tower
from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import EventLog, event_log, tower_inputs
from ranking.retrieval.train import train_towers
from ranking.retrieval.validation import Validation, last_events
from ranking.training_config import CoarseConfig, TrainingConfig
from ranking.types import DAY, BoolArray, FloatArray, Histories, Progress

if TYPE_CHECKING:
    import psycopg

    from features.store import Catalogue, Interactions

_PARITY_LISTS = 64


@dataclass(frozen=True, slots=True)
class _Coarse:
    """What the coarse stage learnt from one log."""

    model: TwoTower
    vectors: FloatArray
    neighbours: np.ndarray[Any, np.dtype[np.int32]]
    neighbour_scores: FloatArray
    ease: np.ndarray[Any, np.dtype[np.int32]]
    ease_weights: FloatArray
    trending: np.ndarray[Any, np.dtype[np.int32]]
    trending_scores: FloatArray


class _Steps:
    """Seconds of each step, and progress to the caller."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        if self._progress:
            self._progress(f"train: {name}", 0, 0)
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def report(self, step: str, done: int, total: int, detail: str = "", /) -> None:
        if self._progress:
            self._progress(step, done, total, detail)


def train(
    connection: psycopg.Connection[Any],
    config: TrainingConfig,
    home: Path,
    progress: Progress | None = None,
) -> Path:
    """Train both stages and write a run directory.

    Killed, it goes on after its last whole pass when it is called again with equal data, config
    and seed, and ends with the same models.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`; features need not be refreshed.
    config : TrainingConfig
    home : Path
        The run is written to ``home/models/<run>``, aside first and then by one rename.
    progress : callable, optional

    Returns
    -------
    Path
        Holds the three ONNX files, arrays of all items in the order of ``item_keys.npy``, and
        ``training.json``.

    Raises
    ------
    ConfigError
        If the device that the config names is not there.
    InputError
        If there are no items, or the holdout leaves no events.
    TrainingError
        If one of several processes failed.
    ReleaseError
        If ONNX Runtime and torch differ by more than the tolerance.
    """
    steps = _Steps(progress)
    on = hardware(config.device, config.processes)
    with _threads(config.threads), steps.step("read"):
        catalogue = read_catalogue(connection)
        interactions = read_interactions(connection)
    keep = _training_events(interactions, config.holdout)
    log = event_log(interactions, catalogue.item_keys, keep)
    if not len(catalogue.item_keys):
        raise InputError("training on 0 items: expected at least one; run 'shortlist load' first")
    if not len(log.rows):
        raise InputError(
            f"training on 0 of {len(interactions.times)} events with holdout "
            f"{config.holdout!r}: expected at least one; load data, or choose holdout 'none' or a "
            "later moment"
        )
    run = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{secrets.token_hex(2)}"
    models = home / "models"
    models.mkdir(parents=True, exist_ok=True)
    with _threads(config.threads), checkpoints(home, config) as kept:
        training = _Training(connection, config, catalogue, interactions, log, steps, on, kept)
        aside = Path(tempfile.mkdtemp(prefix=ASIDE, dir=models))
        try:
            training.write(aside, run)
            aside.chmod(0o755)
            aside.rename(models / run)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
    return models / run


@dataclass(frozen=True, slots=True)
class _Training:
    """One training: what it reads, and where it runs and reports."""

    connection: psycopg.Connection[Any]
    config: TrainingConfig
    catalogue: Catalogue
    interactions: Interactions
    log: EventLog
    steps: _Steps
    on: Hardware
    kept: Checkpoints

    def write(self, directory: Path, run: str) -> None:
        """Train both stages and fill the directory of the run."""
        config, log, catalogue, steps = self.config, self.log, self.catalogue, self.steps
        vocabulary = learn_attributes(catalogue.fields, catalogue.categories)
        attributes = item_attributes(catalogue.fields, catalogue.categories, vocabulary)
        held = held_back(log, config.fine)
        curves = {}
        with steps.step("towers"):
            validation = last_events(log, held, config.coarse.validation_users, config.seed)
            coarse, curves["towers"] = self._coarse(
                "towers", log.select(~held), attributes, config.coarse, validation=validation
            )
        with steps.step("lists"):
            examples = self._examples(coarse, held)
        with steps.step("ranker"):
            learnt_from = [*examples.inputs.values(), examples.rows, examples.history_rows]
            learnt_from += [examples.targets, examples.groups, coarse.vectors]
            ranker, curves["ranker"], calibration = train_ranker(
                examples,
                coarse.vectors,
                config.fine,
                config.seed,
                steps.report,
                device=self.on.device,
                file=self.kept.file("ranker", *learnt_from),
            )
        if held.any() and config.further_epochs:
            # Half the peak rate: the ranker has learnt on the vectors as they are.
            further = {
                "epochs": config.further_epochs,
                "learning_rate": config.coarse.learning_rate / 2,
            }
            with steps.step("towers"):
                coarse, curves["towers, all events"] = self._coarse(
                    "further",
                    log,
                    attributes,
                    config.coarse.model_copy(update=further),
                    start=coarse.model,
                )
        metadata = {"run": run, "spec_hash": spec_hash()}
        with steps.step("export"):
            tolerance = config.parity_tolerance
            vectors, item_parity = export_item_tower(coarse.model, directory, metadata, tolerance)
            lists = self._lists(coarse)
            last = (log.offsets[1:] - 1)[:_PARITY_LISTS]
            _, histories, feeds = lists.of_events(log.positions[last], config.fine.candidates)[0]
            user_parity = export_user_tower(
                coarse.model, directory, histories, vectors, metadata, tolerance
            )
            ranker_parity = export_ranker(ranker, directory, feeds, metadata, tolerance)
        arrays: dict[str, np.ndarray[Any, Any]] = {
            "item_keys": catalogue.item_keys,
            "item_vectors": vectors,
            "id_vectors": coarse.model.ids.detach().numpy(),
            "neighbours": coarse.neighbours,
            "neighbour_scores": coarse.neighbour_scores,
            "ease": coarse.ease,
            "ease_weights": coarse.ease_weights,
            "trending": coarse.trending,
            "trending_scores": coarse.trending_scores,
        }
        for name, array in arrays.items():
            np.save(directory / f"{name}.npy", array, allow_pickle=False)
        record = {
            "run": run,
            "created": datetime.now(UTC).isoformat(),
            "holdout": config.holdout,
            "seed": config.seed,
            "spec_hash": spec_hash(),
            "config": config.model_dump(),
            "item_attributes": vocabulary.to_dict(),
            "items": len(catalogue.item_keys),
            "users": len(log.offsets) - 1,
            "events": len(log.rows),
            "events_in_database": len(self.interactions.times),
            "last_interaction": int(self.interactions.interaction_ids.max()),
            "validation_events": len(validation.targets) if validation else 0,
            "curves": {
                name: [{"pass": at, **asdict(each)} for at, each in enumerate(curve, 1)]
                for name, curve in curves.items()
            },
            "labels": examples.offered,
            "labels_retrieved": examples.retrieved,
            "calibration": asdict(calibration) if calibration else None,
            "parity": {
                ITEM_TOWER: asdict(item_parity),
                USER_TOWER: asdict(user_parity),
                RANKER: asdict(ranker_parity),
            },
            "versions": {"torch": torch.__version__, "numpy": np.__version__},
            "threads": torch.get_num_threads(),
            "device": self.on.device,
            "seconds": {name: round(seconds, 3) for name, seconds in steps.seconds.items()},
        }
        (directory / "training.json").write_text(json.dumps(record, indent=2) + "\n")

    def _coarse(
        self,
        name: str,
        log: EventLog,
        attributes: FloatArray,
        coarse: CoarseConfig,
        start: TwoTower | None = None,
        validation: Validation | None = None,
    ) -> tuple[_Coarse, list[Pass]]:
        arrays: list[np.ndarray[Any, Any]] = [
            log.rows,
            log.times,
            log.values,
            log.offsets,
            attributes,
        ]
        if start is not None:
            arrays += [weights.detach().numpy() for weights in start.parameters()]
        config = self.config
        model, curve = train_towers(
            log,
            attributes,
            coarse,
            config.seed,
            start,
            self.steps.report,
            validation=validation,
            on=self.on,
            file=self.kept.file(name, *arrays),
        )
        with torch.no_grad():
            vectors: FloatArray = model.item_vectors().numpy().copy()
        neighbours, neighbour_scores = covisitation(log, config.covisitation)
        trending, trending_scores = _trending(
            log, config.trending_half_life_days, config.trending_items
        )
        lists = (neighbours, neighbour_scores, *ease(log, config.ease))
        return _Coarse(model, vectors, *lists, trending, trending_scores), curve

    def _lists(self, coarse: _Coarse) -> Lists:
        items, category_names = training_items(
            self.catalogue,
            coarse.vectors,
            coarse.neighbours,
            coarse.neighbour_scores,
            coarse.ease,
            coarse.ease_weights,
            coarse.trending,
            coarse.trending_scores,
        )
        return Lists(
            self.connection,
            self.catalogue,
            self.interactions,
            items,
            category_names,
            _TorchUserTower(coarse.model),
            self.config.retrieval,
        )

    def _examples(self, coarse: _Coarse, held: BoolArray) -> Examples:
        log, fine = self.log, self.config.fine
        as_of = float(log.times[held].min()) if fine.labels == "window" and held.any() else None
        events = list_events(log, held, fine, self.config.seed)
        parts = self._lists(coarse).of_events(
            log.positions[events],
            fine.candidates,
            lambda done, total: self.steps.report("train: lists", done, total),
            as_of,
        )
        taken, later = labels(log, events, fine)
        return collect(parts, taken, later, log.users[events])


def _training_events(interactions: Interactions, holdout: str | float) -> BoolArray:
    """Return which interactions may be learnt from, (E,)."""
    if holdout == "last":
        return leave_last_out(interactions).train
    if holdout == "none":
        return np.ones(len(interactions.times), np.bool_)
    return np.asarray(interactions.times < float(holdout))


def _trending(
    log: EventLog, half_life_days: float, most: int
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], FloatArray]:
    """Return the rows of items by decayed number of events, best first, and these numbers."""
    age_days = (log.times.max() - log.times) / DAY
    scores = np.bincount(log.rows, 0.5 ** (age_days / half_life_days), log.items)
    order = np.lexsort((np.arange(log.items), -scores))[:most].astype(np.int32)
    return order, scores[order].astype(np.float32)


class _TorchUserTower:
    """The user tower under training; serving runs the same graph in ONNX Runtime."""

    def __init__(self, model: TwoTower) -> None:
        self._model = model

    def __call__(self, histories: Histories, item_vectors: FloatArray) -> FloatArray:
        feeds = tower_inputs(histories, item_vectors)
        with torch.no_grad():
            vectors: FloatArray = self._model.users(
                *(torch.from_numpy(array) for array in feeds.values())
            ).numpy()
        return vectors


@contextmanager
def _threads(wanted: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)
