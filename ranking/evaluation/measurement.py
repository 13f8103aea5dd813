"""Measure a pipeline and the baselines on a split: all figures of one evaluation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from features.asof import states_as_of
from features.errors import InputError
from features.states import Interactions
from ranking.catalogue import LiveCatalogue
from ranking.evaluation.baseline_lists import baseline_lists
from ranking.evaluation.bootstrap import Bootstrap
from ranking.evaluation.comparison import (
    TestSet,
    Values,
    accuracies,
    coverages,
    differences,
    estimates,
    slices,
)
from ranking.evaluation.config import EvaluationConfig
from ranking.evaluation.events import TrainingEvents
from ranking.evaluation.examples import example
from ranking.evaluation.provenance import machine
from ranking.evaluation.replay import Replay, known_before_requests, latencies, replay
from ranking.evaluation.result import (
    AnnRecall,
    EvaluationResult,
    Example,
    ModelFigures,
    Percentiles,
)
from ranking.evaluation.values import UserValues, user_values
from ranking.pipeline import Pipeline
from ranking.protocols import Split
from ranking.retrieval.exact import ExactIndex, recall
from ranking.types import DoubleArray, Progress, RowArray

_ANN_K = 200
_LABELS = {"fine": "Coarse + fine", "coarse": "Coarse", "ann": "Two towers (ANN)"}


@dataclass(frozen=True, slots=True)
class Measured:
    """One evaluation: what is reported, and the values of each user behind it."""

    result: EvaluationResult
    values: UserValues


def measure(
    connection: psycopg.Connection[Any],
    pipeline: Pipeline,
    interactions: Interactions,
    split: Split,
    config: EvaluationConfig | None = None,
    progress: Progress | None = None,
    baselines: Path | None = None,
) -> Measured:
    """Evaluate `pipeline` and the baselines on the held-out events of `split`.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`.
    pipeline : Pipeline
        As it serves, of models that have seen nothing but ``split.train``.
    interactions : Interactions
        What `split` was made of.
    split : Split
    config : EvaluationConfig, optional
    progress : callable, optional
        Called as ``progress(step, done, total)``.
    baselines : Path, optional
        Folder in which the lists of baselines are kept for the next pipeline.

    Returns
    -------
    Measured

    Raises
    ------
    InputError
        If no user can be tested.
    """
    config = config or EvaluationConfig()
    if not len(split.user_keys):
        raise InputError(
            f"{split.protocol} on {len(interactions.times)} events: no user to test "
            f"({split.skipped}), expected one with two different items; load more data"
        )
    seconds: dict[str, float] = {}
    drawn = _draw(split, config)
    catalogue = pipeline.catalogue
    with _timed(seconds, "states"):
        states = states_as_of(
            connection,
            drawn.user_keys,
            drawn.as_of,
            pipeline.config.history_limit,
            before_interaction_ids=drawn.before_ids,
        )
    if drawn.gap is not None:
        states = [replace(state, as_of=state.as_of + drawn.gap) for state in states]
    events, users = _training_events(interactions, drawn, catalogue)
    test = _test_set(events, drawn, catalogue)
    with _timed(seconds, "baselines"):
        others = baseline_lists(events, users, drawn, catalogue, config, baselines, progress)
    shown = np.random.default_rng(config.seed).permutation(len(states))[: config.examples].tolist()
    with _timed(seconds, "pipeline"):
        as_of = pipeline.with_item_features(
            *known_before_requests(connection, catalogue, drawn.gap or 0.0)
        )
        found = replay(as_of, states, test.relevant, shown, config.batch, progress)
    with _timed(seconds, "latency"):
        requests = [state.user_id for state in states[: config.latency_requests]]
        laps = latencies(pipeline, connection, requests, progress=progress)
    with _timed(seconds, "figures"):
        lists = found.lists | others.lists
        values = accuracies(lists, test.relevant)
        result = _result(
            pipeline=pipeline,
            interactions=interactions,
            split=split,
            test=test,
            lists=lists,
            values=values,
            labels=_LABELS | others.labels,
            settings=_cascade_settings(pipeline) | others.settings,
            found=found,
            laps=laps,
            examples=[
                example(
                    states[user],
                    found.first[user],
                    found.lists["fine"][user],
                    test.relevant[user],
                    catalogue,
                )
                for user in shown
            ],
            seconds=seconds,
            config=config,
        )
    return Measured(result, user_values([state.user_id for state in states], values))


def _result(
    *,
    pipeline: Pipeline,
    interactions: Interactions,
    split: Split,
    test: TestSet,
    lists: Mapping[str, RowArray],
    values: Values,
    labels: Mapping[str, str],
    settings: Mapping[str, str],
    found: Replay,
    laps: Mapping[str, DoubleArray],
    examples: list[Example],
    seconds: dict[str, float],
    config: EvaluationConfig,
) -> EvaluationResult:
    bootstrap = Bootstrap(config.resamples, config.confidence, config.seed)
    metrics = estimates(lists, values, test, bootstrap)
    coverage = coverages(lists, len(test.vectors))
    others = [name for name in lists if name != "fine"]
    pairs = [(metric, "fine", other) for metric in ("ndcg_at_10", "hr_at_10") for other in others]
    pairs += [("recall_at_200", "coarse", other) for other in others if other != "coarse"]
    index = pipeline.retriever.index
    ann = AnnRecall(
        k=min(_ANN_K, index.ntotal),
        recall=recall(index, found.user_vectors, _ANN_K, ExactIndex(test.vectors)),
        index=str(getattr(index, "kind", type(index).__name__)),
        queries=len(found.user_vectors),
    )
    stages = {name: _percentiles(took) for name, took in laps.items()}
    total = stages.pop("total", Percentiles(p50=np.nan, p95=np.nan, p99=np.nan))
    return EvaluationResult(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        release=pipeline.release,
        protocol=split.protocol,
        seed=config.seed,
        resamples=config.resamples,
        confidence=config.confidence,
        users=len(np.unique(interactions.user_keys)),
        items=len(test.vectors),
        interactions=len(interactions.times),
        training_events=int(split.train.sum()),
        test_users=len(test.relevant),
        test_events=int((test.relevant >= 0).sum()),
        skipped=split.skipped | {"not_drawn": len(split.user_keys) - len(test.relevant)},
        cut=split.cut,
        request_gap_s=split.gap,
        coarse_recall_at_200=metrics["coarse"]["recall_at_200"].mean,
        ann_recall_at_200=ann.recall,
        ndcg_at_10={name: found["ndcg_at_10"].mean for name, found in metrics.items()},
        hr_at_10={name: found["hr_at_10"].mean for name, found in metrics.items()},
        models={
            name: ModelFigures(
                label=labels[name],
                stage="cascade" if name in _LABELS else "baseline",
                settings=settings[name],
                metrics=metrics[name],
                coverage_at_10=coverage[name],
            )
            for name in lists
        },
        differences=differences(values, bootstrap, pairs),
        slices=slices(lists, values, test, bootstrap),
        ann=ann,
        sources=found.sources,
        timing_ms=stages,
        total_ms=total,
        latency_queries=min(config.latency_requests, len(test.relevant)),
        examples=examples,
        seconds={name: round(value, 3) for name, value in seconds.items()},
        machine=machine(),
    )


def _draw(split: Split, config: EvaluationConfig) -> Split:
    users = len(split.user_keys)
    if users <= config.most_users:
        return split
    drawn = np.random.default_rng(config.seed).choice(users, config.most_users, replace=False)
    drawn.sort()
    return replace(
        split,
        user_keys=split.user_keys[drawn],
        as_of=split.as_of[drawn],
        before_ids=None if split.before_ids is None else split.before_ids[drawn],
        relevant=split.relevant[drawn],
        starts=split.starts[drawn],
        stops=split.stops[drawn],
    )


def _training_events(
    interactions: Interactions, split: Split, catalogue: LiveCatalogue
) -> tuple[TrainingEvents, RowArray]:
    """Return the training events of all users as rows, and the places of the test users."""
    users, starts = np.unique(interactions.user_keys, return_index=True)
    bounds = np.append(starts, len(interactions.user_keys))
    events = TrainingEvents(
        rows=catalogue.rows_of_keys(interactions.item_keys),
        times=interactions.times,
        offsets=bounds.astype(np.int64),
        items=len(catalogue.items),
    )
    kept = split.train & (events.rows >= 0)
    return events.restrict(kept), np.searchsorted(users, split.user_keys).astype(np.int64)


def _test_set(events: TrainingEvents, split: Split, catalogue: LiveCatalogue) -> TestSet:
    N = len(catalogue.items)
    real = split.relevant >= 0
    relevant = np.full(split.relevant.shape, -1, np.int64)
    rows = catalogue.rows_of_keys(split.relevant[real])
    # An item that the release does not have is one that nobody can find: row N.
    relevant[real] = np.where((rows >= 0) & (rows < N), rows, N)
    return TestSet(
        relevant=relevant,
        history_lengths=split.stops - split.starts,
        item_users=np.append(events.counts(), 0),
        users=int((np.diff(events.offsets) > 0).sum()),
        vectors=catalogue.items.vectors,
    )


def _cascade_settings(pipeline: Pipeline) -> dict[str, str]:
    config = pipeline.retriever.config
    quotas = ", ".join(f"{name} {quota}" for name, quota in config.quotas.items())
    return {
        "fine": f"{config.candidates} candidates in the order of the ranker, nothing re-ranked",
        "coarse": f"{config.candidates} candidates of all sources, of which at most {quotas}",
        "ann": f"{pipeline.retriever.items.vectors.shape[1]}-dimensional vectors, "
        "the ANN source alone",
    }


def _percentiles(values: DoubleArray) -> Percentiles:
    p50, p95, p99 = np.percentile(values, [50, 95, 99]).round(4).tolist()
    return Percentiles(p50=p50, p95=p95, p99=p99)


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[step] = time.perf_counter() - start
