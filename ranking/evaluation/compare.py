"""Two results side by side, paired by user: better, or only luckier."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from features.errors import InputError
from ranking.evaluation.bootstrap import Bootstrap, Estimate, Number
from ranking.evaluation.job import result_path, values_path
from ranking.evaluation.runs import experiment_path
from ranking.evaluation.values import KEPT, UserValues, load_values, mean_of


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Side(_Part):
    """One of the two results."""

    name: str = Field(description="As it was asked for")
    path: str
    commit: str | None
    seeds: list[int]
    test_users: int


class Pair(_Part):
    """One metric of one model in both results, over the users that both tested."""

    model: str
    metric: str
    a: Number
    b: Number
    difference: Estimate = Field(description="mean(a - b) with its interval over users")
    relative: Number = Field(description="difference.mean / b")


class Comparison(_Part):
    """A against B."""

    schema_version: Literal[1] = 1
    a: Side
    b: Side
    protocol: str
    users: int = Field(description="Test users that both have")
    confidence: float
    pairs: list[Pair] = Field(description="Models and metrics that both have")


def compare(
    home: Path,
    a: str,
    b: str,
    protocol: str = "leave-last-out",
    hidden: bool = False,
    bootstrap: Bootstrap | None = None,
) -> Comparison:
    """Compare two results by the paired bootstrap over the users that both tested.

    The value of a user is the mean over the seeds of a result.

    Parameters
    ----------
    home : Path
    a, b : str
        The name of an experiment, the id of a release, or the path of a result's JSON file.
    protocol : str
        Which result of a name is meant.
    hidden : bool
        Whether that with the request's time hidden is meant.
    bootstrap : Bootstrap, optional

    Raises
    ------
    InputError
        There is no such result, its values are missing, or both tested other things.
    """
    bootstrap = bootstrap or Bootstrap()
    paths = [_find(home, name, protocol, hidden) for name in (a, b)]
    found = [_result(path) for path in paths]
    _check_alike((a, b), found)
    values = [_values(path, result) for path, result in zip(paths, found, strict=True)]
    left, right = values
    users = np.intersect1d(left.user_ids, right.user_ids)
    if not len(users):
        raise InputError(
            f"{a} and {b} have no test user in common: expected results on the same data"
        )
    left, right = left.only(users), right.only(users)
    pairs = []
    for model in left.models:
        for metric in KEPT:
            if model in right.models and metric in left.metrics and metric in right.metrics:
                pairs.append(_pair(model, metric, left, right, bootstrap))
    sides = [
        Side(
            name=name,
            path=str(path),
            commit=result.get("commit"),
            seeds=result.get("seeds", []),
            test_users=result["test_users"],
        )
        for name, path, result in zip((a, b), paths, found, strict=True)
    ]
    return Comparison(
        a=sides[0],
        b=sides[1],
        protocol=found[0]["protocol"],
        users=len(users),
        confidence=bootstrap.confidence,
        pairs=pairs,
    )


def _result(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"result {str(path)!r} cannot be read ({error}): expected the JSON of an evaluation"
        ) from error
    if not isinstance(found, dict) or "protocol" not in found:
        raise InputError(
            f"result {str(path)!r} is none: expected the JSON file that 'shortlist evaluate' wrote"
        )
    return found


def _find(home: Path, name: str, protocol: str, hidden: bool) -> Path:
    if name.endswith(".json") and Path(name).is_file():
        return Path(name)
    tried = [
        experiment_path(home, name, protocol, hidden),
        result_path(home, name, protocol, hidden),
    ]
    for path in tried:
        if path.is_file():
            return path
    raise InputError(
        f"result {name!r}: no JSON file, and neither {tried[0]} nor {tried[1]} is there; run "
        "'shortlist evaluate' with it first"
    )


def _check_alike(names: tuple[str, str], found: list[dict[str, Any]]) -> None:
    for key, shown in (("protocol", "protocol"), ("cut", "cut"), ("data", "data")):
        held = [result.get(key) for result in found]
        if key == "data":
            held = [data and data["fingerprint"] for data in held]
        if None not in held and held[0] != held[1]:
            raise InputError(
                f"{names[0]} has {shown} {held[0]}, {names[1]} has {held[1]}: expected two "
                "results on the same test events"
            )


def _values(path: Path, result: dict[str, Any]) -> UserValues:
    if "runs" in result:
        return mean_of([load_values(path.parent / run["values"]) for run in result["runs"]])
    return load_values(values_path(path))


def _pair(
    model: str, metric: str, left: UserValues, right: UserValues, bootstrap: Bootstrap
) -> Pair:
    a, b = left.of(model, metric), right.of(model, metric)
    difference = bootstrap.difference(a, b)
    base = float(b.mean())
    return Pair(
        model=model,
        metric=metric,
        a=float(a.mean()),
        b=base,
        difference=difference,
        relative=difference.mean / base if base > 0 else float("nan"),
    )
