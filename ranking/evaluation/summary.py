"""What an experiment found over its seeds: the schema of its JSON file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from ranking.evaluation.bootstrap import Bootstrap, Estimate, Number
from ranking.evaluation.comparison import differences
from ranking.evaluation.experiment import Experiment
from ranking.evaluation.result import Difference, EvaluationResult, SliceKind
from ranking.evaluation.values import KEPT, UserValues, mean_of
from ranking.protocols import ProtocolName


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Spread(_Part):
    """One metric of one model over seeds."""

    mean: Number = Field(description="Mean of the seeds")
    sd: Number = Field(description="Standard deviation over seeds; null for one seed")
    seeds: list[Number] = Field(description="One value a seed, in their order")


class SeedRun(_Part):
    """One seed: where its files are, and what it took."""

    seed: int
    release: str
    result: str = Field(description="Its evaluation, relative to this file")
    values: str = Field(description="Values of each user (.npz), relative to this file")
    trained: bool = Field(description="False: models of an earlier run were taken")
    seconds: dict[str, float] = Field(description="Wall time: train, release, evaluate")
    training_seconds: dict[str, float] = Field(description="Wall time of the steps of training")


class SliceSpread(_Part):
    """Figures on a part of the users or test items, over seeds."""

    kind: SliceKind
    label: str
    users: int
    metrics: dict[str, dict[str, Spread]] = Field(description="model -> metric -> spread")


class DataFacts(_Part):
    """What was evaluated on."""

    name: str = Field(description="As it was asked for")
    fingerprint: str
    users: int
    items: int
    interactions: int


class ExperimentResult(_Part):
    """Everything that one experiment measured."""

    schema_version: Literal[1] = 1
    created: str = Field(description="UTC, ISO 8601")
    experiment: Experiment
    config: dict[str, Any] = Field(description="Settings of release and evaluation")
    protocol: ProtocolName
    request_gap_s: float | None = Field(
        description="Seconds after the previous event at which requests were put; null: at the "
        "moment of the held-out event"
    )
    data: DataFacts
    test_users: int
    test_events: int
    seeds: list[int]
    models: dict[str, dict[str, Spread]] = Field(description="model -> metric -> spread")
    intervals: dict[str, dict[str, Estimate]] = Field(
        description="model -> metric -> interval over users of the mean of the seeds"
    )
    differences: list[Difference] = Field(description="Paired over users, of the mean of the seeds")
    slices: list[SliceSpread]
    settings: dict[str, str] = Field(description="What each model is and how it was tuned")
    labels: dict[str, str]
    runs: list[SeedRun]
    seconds: dict[str, float] = Field(description="Wall time by stage, all seeds")
    commit: str | None = Field(description="Of the checkout that ran; null: installed otherwise")
    code: str = Field(description="Hash of the code of models and evaluation")
    spec_hash: str
    versions: dict[str, str]
    machine: str


def spread(values: Sequence[float]) -> Spread:
    """Return mean and sample standard deviation of one value a seed."""
    held = np.array(values, np.float64)
    sd = float(held.std(ddof=1)) if len(held) > 1 else float("nan")
    return Spread(mean=float(held.mean()), sd=sd, seeds=[float(value) for value in held])


def model_spreads(results: Sequence[EvaluationResult]) -> dict[str, dict[str, Spread]]:
    """Return model -> metric -> spread of the models that every seed has."""
    return _spreads(
        [{name: figures.metrics for name, figures in result.models.items()} for result in results]
    )


def slice_spreads(results: Sequence[EvaluationResult]) -> list[SliceSpread]:
    """Return the slices that every seed has."""
    found = []
    for part in results[0].slices:
        same = [
            other
            for result in results
            for other in result.slices
            if (other.kind, other.label) == (part.kind, part.label)
        ]
        if len(same) == len(results):
            metrics = _spreads([other.metrics for other in same])
            found.append(
                SliceSpread(kind=part.kind, label=part.label, users=part.users, metrics=metrics)
            )
    return found


def _spreads(
    runs: Sequence[Mapping[str, Mapping[str, Estimate]]],
) -> dict[str, dict[str, Spread]]:
    return {
        model: {
            metric: spread([run[model][metric].mean for run in runs]) for metric in runs[0][model]
        }
        for model in runs[0]
        if all(model in run for run in runs)
    }


def over_users(
    runs: Sequence[UserValues], bootstrap: Bootstrap
) -> tuple[dict[str, dict[str, Estimate]], list[Difference]]:
    """Return intervals over users of the mean of the seeds, and the paired differences."""
    together = mean_of(runs)
    values = {
        model: {metric: together.of(model, metric) for metric in KEPT} for model in together.models
    }
    intervals = {
        model: dict(
            zip(
                held,
                bootstrap.estimates(np.stack(list(held.values()), axis=1)),
                strict=True,
            )
        )
        for model, held in values.items()
    }
    pairs = [
        (metric, model, other)
        for model in ("fine", "coarse")
        for metric in ("ndcg_at_10", "recall_at_200")
        for other in values
        if other != model and not (model == "coarse" and other == "fine")
    ]
    return intervals, differences(values, bootstrap, pairs)
