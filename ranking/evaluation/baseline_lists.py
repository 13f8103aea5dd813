"""The lists of all baselines for one test, kept in a file where one is named.

They depend on the data and the protocol alone, not on the models that are evaluated, so the
seeds of an experiment share them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ranking.catalogue import LiveCatalogue
from ranking.evaluation.baselines import rank
from ranking.evaluation.config import EvaluationConfig
from ranking.evaluation.events import TrainingEvents
from ranking.evaluation.provenance import baseline_code, key_of
from ranking.evaluation.result import CURVE
from ranking.evaluation.tuning import families, tuned
from ranking.protocols import Split
from ranking.types import Progress, RowArray


@dataclass(frozen=True, slots=True)
class BaselineLists:
    """What the baselines return.

    Attributes
    ----------
    lists : dict of str to (U, 500) int64
        Rows, best first, padded by -1.
    settings, labels : dict of str to str
        How each was tuned, and its name for people.
    """

    lists: dict[str, RowArray]
    settings: dict[str, str]
    labels: dict[str, str]


def baseline_lists(
    events: TrainingEvents,
    users: RowArray,
    split: Split,
    catalogue: LiveCatalogue,
    config: EvaluationConfig,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> BaselineLists:
    """Tune, train and run every baseline.

    Parameters
    ----------
    events : TrainingEvents
        What they may learn from.
    users : (U,) int64
        Test users, as positions in ``events.offsets``.
    split : Split
    catalogue : LiveCatalogue
    config : EvaluationConfig
    folder : Path, optional
        Where lists are kept; those of equal data, code and settings are taken from there.
    progress : callable, optional
        Called as ``progress(step, done, total)``.
    """
    path = None
    if folder is not None:
        path = folder / f"{_key(events, users, split, catalogue, config)}.npz"
        if path.is_file():
            return _read(path)
    if split.protocol == "time-split":
        validation = events.without_window(config.test_share)
    else:
        validation = events.without_last()
    if split.gap is not None:
        # The test's requests come right after the previous event, so those of tuning do too.
        last = validation.events.offsets[validation.users + 1] - 1
        validation = replace(validation, as_of=validation.events.times[last])
    items = catalogue.items
    made = BaselineLists({}, {}, {})
    known = families(events, config.most_ease)
    for done, family in enumerate(known):
        if progress is not None:
            progress("baselines", done, len(known))
        model, choice = tuned(list(family.makers.values()), events, validation, seed=config.seed)
        made.lists[family.name] = rank(
            model, events, users, split.as_of, CURVE[-1], items.available, items.created
        )
        made.settings[family.name] = list(family.makers)[choice]
        made.labels[family.name] = family.label
    if path is not None:
        _write(made, path)
    return made


def _key(
    events: TrainingEvents,
    users: RowArray,
    split: Split,
    catalogue: LiveCatalogue,
    config: EvaluationConfig,
) -> str:
    items = catalogue.items
    arrays = (
        *(events.rows, events.times, events.offsets, users, split.as_of),
        *(items.available, items.created, catalogue.keys(np.arange(len(items)))),
    )
    return key_of(
        {
            "protocol": split.protocol,
            "gap": split.gap,
            "seed": config.seed,
            "test_share": config.test_share,
            "most_ease": config.most_ease,
            "code": baseline_code(),
            "arrays": [_digest(array) for array in arrays],
        }
    )


def _digest(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _read(path: Path) -> BaselineLists:
    with np.load(path, allow_pickle=False) as file:
        texts = json.loads(str(file["texts"]))
        lists = {name: file[f"list_{name}"] for name in texts["labels"]}
    return BaselineLists(lists, texts["settings"], texts["labels"])


def _write(made: BaselineLists, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    texts = {"settings": made.settings, "labels": made.labels}
    arrays: dict[str, Any] = {f"list_{name}": rows for name, rows in made.lists.items()}
    with partial.open("wb") as stream:
        np.savez_compressed(stream, texts=np.array(json.dumps(texts)), **arrays)
    partial.replace(path)
