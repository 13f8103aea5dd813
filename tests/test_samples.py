"""The writer of served features: what it counts is what the database holds."""

import asyncio

import numpy as np
import pytest

from features.database import DatabaseConfig, connect, open_pool
from features.erasure import erase_user
from ranking.types import Ranking, ServedFeatures
from serve.metrics import Metrics
from serve.respond import Answer, Ranked
from serve.samples import SampleWriter

REC_ID = "00000000-0000-0000-0000-00000000000{}"
SERVED = ServedFeatures(
    np.array([1], np.int64),
    np.zeros(1, np.float32),
    np.zeros((1, 1), np.float32),
    np.zeros((1, 1), np.float32),
    1e9,
    "",
)


def answer(number, snapshot="1:1:"):
    ranking = Ranking(items=[], counts={}, timing_ms={}, notes=[], release="r")
    done = Ranked(None, ranking, 1e9, 0.0, 0.0, 0.0, 0.0, snapshot)
    return Answer(b"", done, REC_ID.format(number))


@pytest.fixture
def stored(people):
    def read():
        rows = people.execute("select user_id from served_features order by rec_id").fetchall()
        people.commit()
        return [user_id for (user_id,) in rows]

    return read


def with_writer(url, scenario):
    """Run a scenario with a writer and return the lines of its metric."""
    metrics = Metrics()

    async def go():
        async with open_pool(url, DatabaseConfig()) as pool:
            await scenario(SampleWriter(pool, metrics, capacity=10, most_rows=10))

    asyncio.run(go())
    lines = metrics.exposition().decode().splitlines()
    return [line for line in lines if line.startswith("shortlist_served_features_total{")]


def test_what_is_left_out_is_not_counted_as_written(people, database_url, stored):
    erase_user(people, "u2")

    async def scenario(writer):
        for number, user_id in enumerate(("u1", "u2", "u3")):
            writer.add(user_id, answer(number), SERVED)
        writer.add("u3", answer(4, snapshot=""), SERVED)
        await writer.flush()

    assert with_writer(database_url, scenario) == [
        'shortlist_served_features_total{status="dropped"} 2.0',
        'shortlist_served_features_total{status="written"} 2.0',
    ]
    assert stored() == ["u1", "u3"]


def test_what_is_being_written_at_the_end_is_written_again(people, database_url, stored):
    async def scenario(writer):
        writer.add("u1", answer(1), SERVED)
        with connect(database_url) as other:
            other.execute("lock table served_features in access exclusive mode")
            task = asyncio.create_task(writer.flush())
            while not people.execute("select 1 from pg_locks where not granted").fetchone():
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            other.rollback()
        await writer.flush()

    assert with_writer(database_url, scenario) == [
        'shortlist_served_features_total{status="written"} 1.0'
    ]
    assert stored() == ["u1"]
