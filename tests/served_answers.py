"""Answers as a service samples them: users and items read, candidates and their features stored."""

import asyncio
import uuid

import numpy as np

from features.database import DatabaseConfig, connect, open_pool
from features.encode import encode_cross
from features.served import ServedSample, record_served
from features.spec import spec_hash
from features.store import FeatureStore, item_features_async

ITEMS = ["1", "2", "10", "110", "260", "296", "318", "356", "480", "593"]


def sample_of(state, items, rows, categories, rec_id=None):
    """Make what a service stores of one answer: raw values of some candidates."""
    order = sorted({*state.category_names, *(name for held in categories for name in held)})
    flags = np.array([[name in held for name in order] for held in categories], np.uint8)
    user = dict(
        zip(
            state.category_names,
            zip(state.category_events, state.category_value_sums, strict=True),
            strict=True,
        )
    )
    sums = np.array([user.get(name, (0, 0)) for name in order], np.float32)
    cross = encode_cross(sums[None, :, 0], sums[None, :, 1], flags, np.arange(len(rows))[None])
    return ServedSample(
        rec_id=rec_id or str(uuid.uuid4()),
        served_at=state.as_of,
        user_id=state.user_id,
        release="r",
        spec_hash=spec_hash(),
        user_as_of=state.as_of,
        user_snapshot=state.snapshot,
        item_as_of=items.as_of,
        item_snapshot=items.snapshot,
        user_features=state.features,
        item_keys=items.item_keys[rows],
        item_features=items.features[rows],
        cross_features=cross[0],
    )


def serve(url, user_ids, rounds=1, change=lambda sample: sample):
    """Read users and items as a service does and store what it would have served."""

    async def go():
        async with open_pool(url, DatabaseConfig()) as pool:
            store = FeatureStore(pool)
            with connect(url) as connection:
                found = connection.execute(
                    "select item_key, categories from items where item_id = any(%s)"
                    " order by item_key",
                    (ITEMS,),
                ).fetchall()
            for _ in range(rounds):
                items = await item_features_async(pool)
                rows = np.searchsorted(items.item_keys, [key for key, _ in found])
                states = await store.user_states(user_ids)
                held = [categories for _, categories in found]
                samples = [change(sample_of(state, items, rows, held)) for state in states]
                assert await record_served(pool, samples) == len(samples)

    asyncio.run(go())
