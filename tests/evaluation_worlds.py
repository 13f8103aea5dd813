"""A small database and a real pipeline over it whose ranker is popularity as of the request."""

from __future__ import annotations

from typing import Any

import numpy as np
import psycopg
from worlds import mean_tower

from features.encode import encode_items
from features.store import read_catalogue
from ranking.catalogue import ItemTable, LiveCatalogue
from ranking.id_map import IdMap
from ranking.pipeline import Pipeline
from ranking.retrieval.retriever import RetrievalConfig, Retriever
from ranking.types import Items

START = 1_700_000_000


def fill(connection: psycopg.Connection[Any], events: list[tuple[str, str, float]], items: int):
    """Add items ``i0`` … and events (user, item, seconds after START) in this order."""
    with connection.transaction():
        for number in range(items):
            connection.execute(
                "insert into items (item_id, title, categories, attributes, available, created_at)"
                " values (%s, %s, %s, '{}', true, to_timestamp(0))",
                (f"i{number}", f"Film {number}", [f"c{number % 3}"]),
            )
        add(connection, events)


def add(connection: psycopg.Connection[Any], events: list[tuple[str, str, float]]):
    for user, item, moment in events:
        connection.execute(
            "insert into users (user_id) values (%s) on conflict do nothing", (user,)
        )
        connection.execute(
            "insert into event_types (event_type) values ('rating') on conflict do nothing"
        )
        connection.execute(
            "insert into interactions"
            " (event_id, user_key, item_key, event_type_key, value, occurred_at)"
            " select gen_random_uuid()::text, user_key, item_key, event_type_key, 4,"
            " to_timestamp(%s)"
            " from users, items, event_types where user_id = %s and item_id = %s",
            (START + moment, user, item),
        )


def random_events(users: int, items: int, seed: int = 0) -> list[tuple[str, str, float]]:
    """Each user takes 2 to 9 items, low numbers more often, at random moments."""
    rng = np.random.default_rng(seed)
    chances = 1 / np.arange(1, items + 1)
    events = []
    for user in range(users):
        count = min(int(rng.integers(2, 10)), items)
        chosen = rng.choice(items, count, replace=False, p=chances / chances.sum())
        moments = np.sort(rng.integers(0, 100_000, count))
        events += [
            (f"u{user}", f"i{item}", float(moment))
            for item, moment in zip(chosen, moments, strict=True)
        ]
    return events


class AsOfPopularity:
    """Scores by the first item feature: events before the request."""

    def score(self, inputs):
        return inputs["popularity"]


def popularity_inputs(candidates, histories, users, features, cross, items, covisits):
    return {"popularity": features[:, :, 0]}


def make_pipeline(
    connection: psycopg.Connection[Any], d: int = 8, known: int | None = None, seed: int = 0
) -> Pipeline:
    """A pipeline over the first `known` items: random vectors, mean tower, no neighbours."""
    catalogue = read_catalogue(connection)
    n = len(catalogue.item_keys[:known])
    names = tuple(sorted({name for held in catalogue.categories for name in held}))
    flags = np.array([[name in held for name in names] for held in catalogue.categories[:n]])
    items = Items(
        vectors=np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32),
        available=catalogue.available[:n],
        created=catalogue.created_at[:n],
        categories=flags.reshape(n, len(names)).astype(np.uint8),
        features=encode_items(catalogue.features[:n]),
        neighbours=np.full((n, 2), -1, np.int32),
        neighbour_scores=np.zeros((n, 2), np.float32),
        trending=np.arange(n, dtype=np.int32),
        trending_scores=np.linspace(1, 0, n).astype(np.float32),
        covisits=np.full((n, 2), -1, np.int32),
        covisit_pairs=np.zeros((n, 2), np.float32),
        ease=np.empty((n, 0), np.int32),
        ease_weights=np.empty((n, 0), np.float32),
    )
    fields = catalogue.fields[:n]
    table = ItemTable(
        ids=IdMap.from_ids(catalogue.item_ids[:n]),
        keys=catalogue.item_keys[:n],
        field_text=np.frombuffer(b"".join(fields), np.uint8),
        field_offsets=np.cumsum([0, *map(len, fields)]),
        category_names=names,
        items=items,
        watermark=0,
    )
    retriever = Retriever(mean_tower, items, RetrievalConfig())
    return Pipeline(
        "test-release", LiveCatalogue(table), retriever, AsOfPopularity(), popularity_inputs
    )
