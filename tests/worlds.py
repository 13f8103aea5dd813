"""Small catalogues and histories with structure, made from a seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tiny_models

from features.spec import names
from features.states import UserState
from ranking.catalogue import ItemTable, LiveCatalogue
from ranking.fine.inputs import ranker_inputs
from ranking.fine.ranker import OnnxRanker
from ranking.id_map import IdMap
from ranking.onnx_model import OnnxModel
from ranking.pipeline import Pipeline
from ranking.retrieval.retriever import RetrievalConfig, Retriever
from ranking.retrieval.tower import OnnxUserTower
from ranking.types import FloatArray, Histories, Items, RowArray

NOW = 1_700_000_000.0
DAY = 86_400.0


def make_items(
    n: int, d: int = 8, categories: int = 4, seed: int = 0, unavailable: float = 0.1
) -> Items:
    """Items in clusters; neighbours are the nearest by vector, trending is a shuffle."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((categories, d))
    kind = rng.integers(0, categories, n)
    vectors = (centres[kind] + 0.5 * rng.standard_normal((n, d))).astype(np.float32)
    flags = (rng.random((n, categories)) < 0.15).astype(np.uint8)
    flags[np.arange(n), kind] = 1
    M = min(5, max(n - 1, 0))
    near = vectors @ vectors.T
    np.fill_diagonal(near, -np.inf)
    neighbours = np.argsort(-near, axis=1)[:, :M].astype(np.int32)
    scores = np.exp(np.take_along_axis(near, neighbours.astype(np.int64), 1) / 10)
    trending = rng.permutation(n)[: max(1, n // 2)] if n else np.empty(0)
    return Items(
        vectors=vectors,
        available=rng.random(n) >= unavailable,
        created=NOW - rng.uniform(0, 200, n) * DAY,
        categories=flags,
        features=rng.standard_normal((n, len(names("item")))).astype(np.float32),
        neighbours=neighbours,
        neighbour_scores=scores.astype(np.float32),
        trending=trending.astype(np.int32),
        trending_scores=np.linspace(1, 0.1, len(trending)).astype(np.float32),
        covisits=neighbours[:, ::-1].copy(),
        covisit_pairs=rng.integers(1, 9, neighbours.shape).astype(np.float32),
        ease=neighbours[:, 1:4].copy(),
        ease_weights=scores[:, 1:4].astype(np.float32),
    )


def make_histories(items: Items, lengths: list[int], seed: int = 0) -> Histories:
    """Random distinct items for each user, an hour apart, the last an hour ago."""
    rng = np.random.default_rng(seed)
    L = max([1, *lengths])
    rows = np.full((len(lengths), L), -1, np.int64)
    times = np.zeros((len(lengths), L))
    for b, length in enumerate(lengths):
        rows[b, :length] = rng.choice(len(items), length, replace=False)
        times[b, :length] = NOW - 3600.0 * np.arange(length, 0, -1)
    values = np.where(rows >= 0, rng.uniform(1, 5, rows.shape), 0).astype(np.float32)
    return Histories(rows, values, times, np.array(lengths), np.full(len(lengths), NOW))


def mean_tower(histories: Histories, item_vectors: FloatArray) -> FloatArray:
    """Return the mean vector of each history and one of its own: a real, simple user tower."""
    known = histories.rows >= 0
    vectors = item_vectors[histories.rows]
    total = (vectors * known[..., None]).sum(axis=1) + np.linspace(0.01, 0.02, vectors.shape[2])
    return (total / (known.sum(axis=1) + 1)[:, None]).astype(np.float32)


def rows_of(histories: Histories) -> list[RowArray]:
    """Return the rows of each history without padding."""
    return [rows[:length] for rows, length in zip(histories.rows, histories.lengths, strict=True)]


def first(items: Items, n: int) -> Items:
    """Return the catalogue as it was when it had only its first `n` items."""
    old = items.trending < n
    return Items(
        vectors=items.vectors[:n],
        available=items.available[:n],
        created=items.created[:n],
        categories=items.categories[:n],
        features=items.features[:n],
        neighbours=np.where(items.neighbours < n, items.neighbours, -1)[:n],
        neighbour_scores=items.neighbour_scores[:n],
        trending=items.trending[old],
        trending_scores=items.trending_scores[old],
        covisits=np.where(items.covisits < n, items.covisits, -1)[:n],
        covisit_pairs=items.covisit_pairs[:n],
        ease=np.where(items.ease < n, items.ease, -1)[:n],
        ease_weights=items.ease_weights[:n],
    )


def make_table(n: int, seed: int = 0, unavailable: float = 0.1) -> ItemTable:
    """A release's items: row r has id ``i<r>``, key 100 + r, title ``title <r>``."""
    items = make_items(n, seed=seed, unavailable=unavailable)
    fields = [f'{{"title": "title {row}"}}'.encode() for row in range(n)]
    return ItemTable(
        ids=IdMap.from_ids([f"i{row}" for row in range(n)]),
        keys=100 + np.arange(n),
        field_text=np.frombuffer(b"".join(fields), np.uint8),
        field_offsets=np.concatenate([[0], np.cumsum([len(text) for text in fields])]).astype(
            np.int64
        ),
        category_names=tuple(f"c{k}" for k in range(4)),
        items=items,
        watermark=0,
    )


def make_state(
    table: ItemTable, length: int, seed: int = 0, user_id: str | None = None
) -> UserState:
    """A user with `length` distinct items; nothing but the history varies."""
    histories = make_histories(table.items, [length], seed)
    rows = histories.rows[0, :length]
    return UserState(
        user_id=user_id or f"u{seed}",
        known=True,
        item_keys=table.keys[rows],
        values=histories.values[0, :length],
        times=histories.times[0, :length],
        seen_keys=np.sort(table.keys[rows]),
        features=np.full(len(names("user")), 1.0, np.float32),
        category_names=["c1", "c3"],
        category_events=np.array([2, 1], np.float32),
        category_value_sums=np.array([8, 3], np.float32),
        as_of=NOW,
    )


def make_pipeline(
    table: ItemTable, directory: Path, config: RetrievalConfig | None = None
) -> Pipeline:
    """The real pipeline over small ONNX models."""
    d = table.items.vectors.shape[1]
    catalogue = LiveCatalogue(
        table, lambda fields, categories: np.full((len(fields), d), 0.3, np.float32)
    )
    tower = OnnxUserTower(OnnxModel(tiny_models.user_tower(directory / "user_tower.onnx", d)))
    return Pipeline(
        release="tiny",
        catalogue=catalogue,
        retriever=Retriever(tower, table.items, config or RetrievalConfig(candidates=50)),
        ranker=OnnxRanker(OnnxModel(tiny_models.ranker(directory / "ranker.onnx", d))),
        build_inputs=ranker_inputs,
    )
