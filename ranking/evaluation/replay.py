"""Run the pipeline that serves over held-out events, as of their moments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
from psycopg.conninfo import make_conninfo

from features.asof import item_features_as_of
from features.database import DatabaseConfig, open_pool
from features.encode import encode_items
from features.states import UserState
from features.store import FeatureStore
from ranking.catalogue import LiveCatalogue
from ranking.covisits import covisits_of
from ranking.evaluation.metrics import hits
from ranking.evaluation.result import CURVE
from ranking.pipeline import CovisitsOf, ItemFeatures, Pipeline
from ranking.types import DoubleArray, FloatArray, Items, Progress, Query, Ranking, RowArray

_WARM_UP = 20


@dataclass(frozen=True, slots=True)
class Replay:
    """What the stages returned for U test users.

    Attributes
    ----------
    lists : dict of str to (U, 500) int64
        Rows in the order of the ANN source alone (``ann``), of the merged candidates
        (``coarse``) and of the ranker (``fine``), padded by -1. Coarse goes on beyond the
        candidates that are ranked when the pipeline ranks fewer than 500.
    sources : dict of str to float
        Share of the test items that each source has among the ranked candidates.
    user_vectors : (U, d) float32
        Queries of the ANN source.
    first : dict of int to Ranking
        The first 10 items for the users that were asked to be kept.
    """

    lists: dict[str, RowArray]
    sources: dict[str, float]
    user_vectors: FloatArray
    first: dict[int, Ranking]


def as_of_features(connection: psycopg.Connection[Any], catalogue: LiveCatalogue) -> ItemFeatures:
    """Return item features as of each request, for :meth:`Pipeline.with_item_features`."""

    def features(items: Items, rows: RowArray, now: DoubleArray) -> FloatArray:
        out = np.zeros((*rows.shape, items.features.shape[1]), dtype=np.float32)
        real = rows >= 0
        moments = np.broadcast_to(now[:, None], rows.shape)[real]
        # Users of a time split share their moment, and most of their candidates.
        pairs, inverse = np.unique(
            np.stack([rows[real].astype(np.float64), moments]), axis=1, return_inverse=True
        )
        keys = catalogue.keys(pairs[0].astype(np.int64))
        raw = item_features_as_of(connection, keys, pairs[1])
        out[real] = encode_items(raw)[inverse.ravel()]
        return out

    return features


def known_before_requests(
    connection: psycopg.Connection[Any], catalogue: LiveCatalogue, gap: float
) -> tuple[ItemFeatures, CovisitsOf]:
    """Return item features and co-visits as of `gap` seconds before each request."""
    features = as_of_features(connection, catalogue)
    covisits = covisits_of(connection, catalogue)
    return (
        lambda items, rows, now: features(items, rows, now - gap),
        lambda items, histories: covisits(items, replace(histories, now=histories.now - gap)),
    )


def replay(
    pipeline: Pipeline,
    states: Sequence[UserState],
    relevant: RowArray,
    keep: Collection[int] = (),
    batch: int = 64,
    progress: Progress | None = None,
) -> Replay:
    """Recommend to each test user as of the moment of the state.

    Parameters
    ----------
    pipeline : Pipeline
        With item features as of each request.
    states : sequence of U UserState
    relevant : (U, R) int64
        Rows of the test items, padded by -1.
    keep : collection of int
        Users whose answer is kept whole.
    batch : int
        Users at a time.
    progress : callable, optional
        Called as ``progress(step, done, total)``.

    Returns
    -------
    Replay
    """
    longest, config = CURVE[-1], pipeline.retriever.config
    users = len(states)
    lists = {name: np.full((users, longest), -1, np.int64) for name in ("ann", "coarse", "fine")}
    found: dict[str, int] = {}
    vectors, first = [], {}
    # So wide that no item among the first 500 of the ANN source loses its place to another.
    wide = longest + sum(config.quotas.values())
    for start in range(0, users, batch):
        part = list(states[start : start + batch])
        stop = start + len(part)
        queries = [Query(state.user_id, config.candidates, state.as_of) for state in part]
        ranked = pipeline.retrieve(queries, part)
        more = pipeline.retrieve(queries, part, wide)
        vectors.append(more.user_vectors)
        lists["coarse"][start:stop] = _chained(ranked.rows, more.rows, longest)
        ann = more.source_ranks[:, :, more.sources.index("ann")].astype(np.int64)
        lists["ann"][start:stop] = _by_rank(more.rows, ann, longest)
        hit = hits(ranked.rows, relevant[start:stop])
        for number, name in enumerate(ranked.sources):
            brought = int((hit & (ranked.source_ranks[:, :, number] >= 0)).sum())
            found[name] = found.get(name, 0) + brought
        for user, ranking in enumerate(pipeline.recommend(queries, part), start):
            rows = [item.row for item in ranking.items[:longest]]
            lists["fine"][user, : len(rows)] = rows
            if user in keep:
                ranking.items = ranking.items[:10]
                first[user] = ranking
        if progress is not None:
            progress("rank held-out events", stop, users)
    total = max(int((relevant >= 0).sum()), 1)
    return Replay(
        lists=lists,
        sources={name: count / total for name, count in found.items()},
        user_vectors=np.concatenate(vectors),
        first=first,
    )


def latencies(
    pipeline: Pipeline,
    connection: psycopg.Connection[Any],
    user_ids: Sequence[str],
    count: int = 10,
    progress: Progress | None = None,
) -> dict[str, DoubleArray]:
    """Time single requests as they are served: live state of the user, then all stages.

    Parameters
    ----------
    pipeline : Pipeline
        As it serves.
    connection : psycopg.Connection
        Names the database; the states are read through a pool, as in a replica.
    user_ids : sequence of str
        One request each; some more come before to warm up.
    count : int
        Items a request.
    progress : callable, optional
        Called as ``progress(step, done, total)``.

    Returns
    -------
    dict of str to (n,) float64
        Milliseconds of each stage, in the order of the stages, and ``total``.
    """
    url = make_conninfo(connection.info.dsn, password=connection.info.password)
    warm = [user_ids[n % len(user_ids)] for n in range(_WARM_UP)] if user_ids else []
    laps = asyncio.run(_timed(pipeline, url, [*warm, *user_ids], count, progress))[len(warm) :]
    names = list(laps[0]) if laps else []
    return {name: np.array([lap.get(name, 0.0) for lap in laps]) for name in names}


async def _timed(
    pipeline: Pipeline,
    url: str,
    user_ids: Sequence[str],
    count: int,
    progress: Progress | None,
) -> list[dict[str, float]]:
    laps = []
    async with open_pool(url, DatabaseConfig(pool_max_size=1)) as pool:
        store = FeatureStore(pool, pipeline.config.history_limit)
        for done, user_id in enumerate(user_ids, 1):
            start = time.perf_counter()
            states = await store.user_states([user_id])
            read = time.perf_counter()
            [ranking] = pipeline.recommend([Query(user_id, count, states[0].as_of)], states)
            end = time.perf_counter()
            laps.append(
                {"user_state": (read - start) * 1e3}
                | ranking.timing_ms
                | {"total": (end - start) * 1e3}
            )
            if progress is not None and done % 20 == 0:
                progress("time single requests", done, len(user_ids))
    return laps


def _chained(rows: RowArray, more: RowArray, length: int) -> RowArray:
    """Return `rows` followed by what `more` has beside it, cut to `length`."""
    both = np.concatenate([rows, more], axis=1)
    out = np.full((len(rows), length), -1, np.int64)
    for user, row in enumerate(both):
        distinct = list(dict.fromkeys(row[row >= 0].tolist()))[:length]
        out[user, : len(distinct)] = distinct
    return out


def _by_rank(rows: RowArray, ranks: RowArray, length: int) -> RowArray:
    """Return `rows` in the order of `ranks`, those without a rank left out."""
    ranks = np.where((ranks >= 0) & (rows >= 0), ranks, np.iinfo(np.int64).max)
    order = np.argsort(ranks, axis=1, kind="stable")[:, :length]
    found = np.take_along_axis(ranks, order, axis=1) < np.iinfo(np.int64).max
    out = np.full((len(rows), length), -1, np.int64)
    out[:, : order.shape[1]] = np.where(found, np.take_along_axis(rows, order, axis=1), -1)
    return out
