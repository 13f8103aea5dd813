"""Compare ranked lists of several models over the same test users: pure, no database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ranking.evaluation.bootstrap import Bootstrap, Estimate
from ranking.evaluation.metrics import (
    coverage_at,
    diversity_at,
    hit_rate_at,
    hits,
    ndcg_at,
    novelty_at,
    recall_at,
    reciprocal_rank,
    relevant_counts,
)
from ranking.evaluation.result import CURVE, Difference, Slice, SliceKind
from ranking.types import BoolArray, DoubleArray, FloatArray, RowArray

SLICE_METRICS = ("ndcg_at_10", "recall_at_200")
EVENT_BUCKETS = ((0, 0), (1, 4), (5, 19), (20, 99), (100, None))
WARM = 5
"""Training events from which a user or an item counts as warm, under which as cold."""
_COLD_AND_WARM = (("cold", 0, WARM - 1), ("warm", WARM, None))

Values = Mapping[str, Mapping[str, DoubleArray]]
"""model -> metric -> value of each user (U,)."""


@dataclass(frozen=True, slots=True)
class TestSet:
    """What U test users chose, and what training knew.

    Attributes
    ----------
    relevant : (U, R) int64
        Rows of the test items, -1 where padded.
    history_lengths : (U,) int64
        Training events of each test user.
    item_users : (N,) int64
        Training events of each item.
    users : int
        Users with training events.
    vectors : (N, d) float32
        Item vectors, for the diversity of lists.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    relevant: RowArray
    history_lengths: RowArray
    item_users: RowArray
    users: int
    vectors: FloatArray


def accuracy(ranked: RowArray, relevant: RowArray) -> dict[str, DoubleArray]:
    """Return every accuracy metric of one model, each (U,)."""
    hit, counts = hits(ranked, relevant), relevant_counts(relevant)
    values = {
        "ndcg_at_10": ndcg_at(hit, counts, 10),
        "hr_at_10": hit_rate_at(hit, 10),
        "hr_at_50": hit_rate_at(hit, 50),
        "mrr": reciprocal_rank(hit),
    }
    return values | {f"recall_at_{k}": recall_at(hit, counts, k) for k in CURVE}


def accuracies(lists: Mapping[str, RowArray], relevant: RowArray) -> Values:
    """Return model -> metric -> value of each user (U,)."""
    return {name: accuracy(ranked, relevant) for name, ranked in lists.items()}


def estimates(
    lists: Mapping[str, RowArray], values: Values, test: TestSet, bootstrap: Bootstrap
) -> dict[str, dict[str, Estimate]]:
    """Return model -> metric -> estimate for all models and metrics."""
    found: dict[str, dict[str, Estimate]] = {}
    for name, ranked in lists.items():
        found[name] = _means(values[name], bootstrap)
        novelty = novelty_at(ranked, 10, test.item_users, test.users)
        found[name]["novelty_at_10"] = bootstrap.estimate(novelty)
        diversity = diversity_at(ranked, 10, test.vectors)
        found[name]["diversity_at_10"] = bootstrap.estimate(diversity)
    return found


def coverages(lists: Mapping[str, RowArray], items: int) -> dict[str, float]:
    """Return model -> share of the catalogue in some user's first 10."""
    return {name: coverage_at(ranked, 10, items) for name, ranked in lists.items()}


def differences(
    values: Values, bootstrap: Bootstrap, pairs: Sequence[tuple[str, str, str]]
) -> list[Difference]:
    """Return the paired difference for each (metric, model, other) of `pairs`."""
    found = []
    for metric, model, other in pairs:
        left, right = values[model][metric], values[other][metric]
        estimate = bootstrap.difference(left, right)
        base = float(right.mean()) if len(right) else 0.0
        relative = estimate.mean / base if base > 0 else float("nan")
        found.append(
            Difference(
                metric=metric, model=model, other=other, estimate=estimate, relative=relative
            )
        )
    return found


def slices(
    lists: Mapping[str, RowArray], values: Values, test: TestSet, bootstrap: Bootstrap
) -> list[Slice]:
    """Return figures by length of history, and by training events of the test item.

    Histories are cut at their quartiles: what is a short one depends on the data. Users and
    items stand once more as cold and warm, cut at :data:`WARM`.
    """
    found = []
    lengths = test.history_lengths
    if len(lengths):
        edges = np.unique(np.quantile(lengths, [0.25, 0.75]).astype(np.int64))
        bounds = [*zip([0, *(edges + 1)], [*edges, None], strict=True)]
        ranges: list[tuple[SliceKind, str, int, int | None]] = [
            ("history", _range_label(max(int(low), int(lengths.min())), high), int(low), high)
            for low, high in bounds
        ]
        ranges += [("users", label, low, high) for label, low, high in _COLD_AND_WARM]
        for kind, label, low, high in ranges:
            inside = _between(lengths, low, high)
            if inside.any():
                part: Values = {
                    name: {metric: value[inside] for metric, value in held.items()}
                    for name, held in values.items()
                }
                found.append(_slice(kind, label, part, bootstrap))
    known = np.where(test.relevant >= 0, test.item_users[np.maximum(test.relevant, 0)], -1)
    ranges = [
        ("training_events", _range_label(low, high), low, high) for low, high in EVENT_BUCKETS
    ]
    ranges += [("items", label, low, high) for label, low, high in _COLD_AND_WARM]
    for kind, label, low, high in ranges:
        inside = _between(known, low, high)
        chosen = np.flatnonzero(inside.any(axis=1))
        if len(chosen):
            relevant = np.where(inside[chosen], test.relevant[chosen], -1)
            part = accuracies({name: ranked[chosen] for name, ranked in lists.items()}, relevant)
            found.append(_slice(kind, label, part, bootstrap))
    return found


def _slice(kind: SliceKind, label: str, values: Values, bootstrap: Bootstrap) -> Slice:
    users = len(next(iter(values.values()))[SLICE_METRICS[0]])
    figures = {
        name: _means({metric: held[metric] for metric in SLICE_METRICS}, bootstrap)
        for name, held in values.items()
    }
    return Slice(kind=kind, label=label, users=users, metrics=figures)


def _means(values: Mapping[str, DoubleArray], bootstrap: Bootstrap) -> dict[str, Estimate]:
    columns = np.stack(list(values.values()), axis=1)
    return dict(zip(values, bootstrap.estimates(columns), strict=True))


def _between(values: RowArray, low: int, high: int | None) -> BoolArray:
    return np.asarray((values >= low) & (values <= (np.inf if high is None else high)), np.bool_)


def _range_label(low: int, high: int | None) -> str:
    if high is None:
        return f"{low} or more"
    return f"{low}" if low == high else f"{low} to {high}"
