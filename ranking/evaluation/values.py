"""What each test user got from each ranking, kept beside a result so that two can be paired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from features.errors import InputError
from ranking.types import DoubleArray

KEPT = ("ndcg_at_10", "hr_at_10", "hr_at_50", "recall_at_100", "recall_at_200", "recall_at_500")
"""Metrics of which the value of each user is kept."""


@dataclass(frozen=True, slots=True)
class UserValues:
    """Values of M models and K metrics for U test users.

    Attributes
    ----------
    user_ids : (U,) str
        External ids, ascending, each once.
    models, metrics : tuple of str
        Names on the first two axes.
    values : (M, K, U) float32
    """

    user_ids: NDArray[np.str_]
    models: tuple[str, ...]
    metrics: tuple[str, ...]
    values: NDArray[np.float32]

    def of(self, model: str, metric: str) -> DoubleArray:
        """Return the values of one model and metric, (U,)."""
        held = self.values[self.models.index(model), self.metrics.index(metric)]
        return np.asarray(held, dtype=np.float64)

    def only(self, user_ids: NDArray[np.str_]) -> UserValues:
        """Return the values of `user_ids`, which must be ascending and among these."""
        at = np.searchsorted(self.user_ids, user_ids)
        return UserValues(user_ids, self.models, self.metrics, self.values[:, :, at])


def user_values(
    user_ids: Sequence[str], values: Mapping[str, Mapping[str, DoubleArray]]
) -> UserValues:
    """Return what is kept of model -> metric -> value of each user (U,)."""
    ids = np.array(user_ids, dtype=np.str_)
    order = np.argsort(ids)
    held = [[values[model][metric][order] for metric in KEPT] for model in values]
    shape = (len(values), len(KEPT), len(ids))
    return UserValues(
        ids[order], tuple(values), KEPT, np.array(held, dtype=np.float32).reshape(shape)
    )


def mean_of(runs: Sequence[UserValues]) -> UserValues:
    """Return the mean over runs, user by user, of the models that all have.

    Raises
    ------
    InputError
        The runs tested different users.
    """
    first = runs[0]
    if any(not np.array_equal(run.user_ids, first.user_ids) for run in runs[1:]):
        raise InputError(
            "the seeds of one result were tested on different users: expected the same; run "
            "'shortlist evaluate … --fresh'"
        )
    models = tuple(name for name in first.models if all(name in run.models for run in runs))
    stacked = [run.values[[run.models.index(name) for name in models]] for run in runs]
    return UserValues(
        first.user_ids, models, first.metrics, np.mean(stacked, axis=0, dtype=np.float32)
    )


def save_values(values: UserValues, path: Path) -> None:
    """Write an .npz file without pickled objects, replacing it at once."""
    partial = path.with_name(path.name + ".part")
    with partial.open("wb") as stream:
        np.savez_compressed(
            stream,
            user_ids=values.user_ids,
            models=np.array(values.models, dtype=np.str_),
            metrics=np.array(values.metrics, dtype=np.str_),
            values=values.values,
        )
    partial.replace(path)


def load_values(path: Path) -> UserValues:
    """Read what :func:`save_values` wrote.

    Raises
    ------
    InputError
        There is no such file.
    """
    if not path.is_file():
        raise InputError(
            f"{path} is missing: the values of each user stand there; evaluate again to write them"
        )
    with np.load(path, allow_pickle=False) as file:
        return UserValues(
            file["user_ids"],
            tuple(str(name) for name in file["models"]),
            tuple(str(name) for name in file["metrics"]),
            file["values"],
        )
