"""What SQL features cost beside the bare statements of PostgreSQL, in one run on one server.

Four ratios, each of two things that take turns on the same tables: loading a file and a bare
binary COPY of the same rows; a refresh after new events and a full rebuild, twice, the second
time on twice the history; values as of a moment and a bare COPY of the same select; the state of
a user and a bare prepared select of the same rows. The events are synthetic
(:mod:`loadtests.world`), in a database of its own that is dropped at the end.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np
import psycopg
from numpy.typing import NDArray
from psycopg import AsyncConnection, sql
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from features import asof, schema
from features.database import DatabaseConfig, connect, open_pool
from features.refresh import refresh
from features.retry import run_async
from features.store import FeatureStore
from loadtests.bench import machine
from loadtests.bench_ingest import Report, measure_load
from loadtests.plans import watched
from loadtests.world import HISTORY_DAYS, MICROS_A_DAY, World, copy_events, fill_catalogue

BETWEEN_HOURS = 4
"""Hours from one refresh to the next: windows lose about as many events as they gain."""
REFRESHES = 3
SLICE = 1_000_000
STATES = 2_000
HISTORY_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured.

    Attributes
    ----------
    load_rows : int
        Rows of the file that is loaded.
    events : int
        Events of the history; it is doubled once.
    new_events : int
        Events between two refreshes.
    asof_rows : int
        About how many as-of values of users and of items are read.
    world : World
        Users and items.
    rounds : int
        Rounds of loading.
    """

    load_rows: int = 5_000_000
    events: int = 20_000_000
    new_events: int = 10_000
    asof_rows: int = 200_000
    world: World = field(default_factory=World)
    rounds: int = 2


@contextmanager
def own_database(url: str) -> Iterator[str]:
    """Make a database beside the one of `url`, with the schema; drop it at the end."""
    name = f"shortlist_bench_{uuid.uuid4().hex[:8]}"
    with connect(url) as admin:
        admin.autocommit = True
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        try:
            own = make_conninfo(url, dbname=name)
            with connect(own) as connection:
                schema.apply(connection)
            yield own
        finally:
            drop = sql.SQL("drop database {} with (force)").format(sql.Identifier(name))
            admin.execute(drop)


def fill(
    connection: psycopg.Connection[Any], world: World, count: int, end: int, part: int,
    report: Report,
) -> None:  # fmt: skip
    """Append `count` events of the year before `end` in slices of time."""
    slices = max(1, count // SLICE)
    start = end - HISTORY_DAYS * MICROS_A_DAY
    for number in range(slices):
        report("events", number, slices)
        low = start + (end - start) * number // slices
        high = start + (end - start) * (number + 1) // slices
        copy_events(connection, world.events(count // slices, low, high, part + number))


def _moment(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)


def measure_refreshes(
    connection: psycopg.Connection[Any], scale: Scale, end: int, part: int, report: Report
) -> tuple[dict[str, float], dict[str, int]]:
    """Rebuild as of some hours ago, then add and refresh what came in each step since.

    The last refresh is not timed: its scans are counted.
    """
    step = BETWEEN_HOURS * MICROS_A_DAY // 24
    since = end - (REFRESHES + 1) * step
    scans: dict[str, int] = {}
    report("full rebuild", 0, 1)
    started = time.perf_counter()
    refresh(connection, full=True, as_of=_moment(since))
    full = time.perf_counter() - started
    took = []
    for number in range(REFRESHES + 1):
        report("refresh", number, REFRESHES + 1)
        low = since + number * step
        copy_events(
            connection, scale.world.events(scale.new_events, low, low + step, part + number)
        )
        if number == REFRESHES:
            with watched(connection, scans):
                refresh(connection, as_of=_moment(low + step))
            break
        started = time.perf_counter()
        refresh(connection, as_of=_moment(low + step))
        took.append(time.perf_counter() - started)
    return {"full": full, "refresh": statistics.median(took)}, scans


def sizes(connection: psycopg.Connection[Any]) -> dict[str, dict[str, int]]:
    """Return rows and bytes of each table, its partitions added up, and of its indexes."""
    connection.execute("analyze")
    rows = connection.execute(
        """
        select
            coalesce(parent.relname, part.relname),
            sum(part.reltuples)::bigint,
            sum(pg_table_size(part.oid))::bigint,
            sum(pg_indexes_size(part.oid))::bigint
        from pg_class as part
        inner join pg_namespace on part.relnamespace = pg_namespace.oid
        left join pg_inherits on part.oid = pg_inherits.inhrelid
        left join pg_class as parent on pg_inherits.inhparent = parent.oid
        where pg_namespace.nspname = 'shortlist' and part.relkind = 'r'
        group by 1
        having sum(part.reltuples) > 0
        order by 3 desc
        """
    ).fetchall()
    connection.commit()
    return {
        str(name): {"rows": int(count), "table_bytes": int(table), "index_bytes": int(indexes)}
        for name, count, table, indexes in rows
    }


def measure_as_of(
    connection: psycopg.Connection[Any], scale: Scale, report: Report
) -> dict[str, float]:
    """Read users and items as of their events, and copy the same select bare, in turns."""
    report("as of", 0, 1)
    rows = connection.execute(
        "select user_key, item_key, micros(occurred_at) from interactions where user_key in"
        " (select user_key from users order by hashtextextended(user_id, 7) limit %s)",
        (max(1, scale.asof_rows * scale.world.users // scale.events),),
    ).fetchall()
    connection.commit()
    users, items, moments = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    found = {"asof_rows": float(len(rows))}
    groups: tuple[tuple[Literal["user", "item"], NDArray[np.int64]], ...] = (
        ("user", users),
        ("item", items),
    )
    for group, keys in groups:
        taken, bare = [], []
        for number in range(2):
            report(f"{group}s as of", number, 2)
            started = time.perf_counter()
            if group == "user":
                asof.user_features_as_of(connection, keys, moments / 1e6)
            else:
                asof.item_features_as_of(connection, keys, moments / 1e6)
            taken.append(time.perf_counter() - started)
            bare.append(_bare_as_of(connection, group, keys, moments))
        found[f"asof_{group}_rows_per_s"] = len(rows) / statistics.median(taken)
        found[f"asof_{group}_over_copy"] = statistics.median(
            b / t for t, b in zip(taken, bare, strict=True)
        )
    return found


def _bare_as_of(
    connection: psycopg.Connection[Any],
    group: Literal["user", "item"],
    keys: NDArray[np.int64],
    moments: NDArray[np.int64],
) -> float:
    """Return the seconds of a bare text COPY of the same select, its rows thrown away."""
    order = np.argsort(keys, kind="stable")
    started = time.perf_counter()
    with asof.staged(connection, group, keys[order], moments[order]) as select:
        statement = sql.SQL("copy ({}) to stdout").format(sql.SQL(select))
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for _ in copy:
                pass
    return time.perf_counter() - started


# The rows behind a state, as anybody would select them.
_BARE_STATE = """
select history.item_key, history.value, history.occurred_at, totals.events, totals.value_sum
from shortlist.users
left join shortlist.user_totals as totals on users.user_key = totals.user_key
cross join lateral (
    select interactions.item_key, interactions.value, interactions.occurred_at
    from shortlist.interactions
    where interactions.user_key = users.user_key and interactions.occurred_at < %s
    order by interactions.occurred_at desc, interactions.interaction_id desc
    limit %s
) as history
where users.user_id = %s
"""


_PEOPLE = """
select users.user_id
from shortlist.users inner join shortlist.user_totals on users.user_key = user_totals.user_key
order by hashtextextended(users.user_id, 7)
limit %s
"""


async def _bare_state(pool: AsyncConnectionPool[AsyncConnection[Any]], user_id: str) -> None:
    async with pool.connection() as connection:
        cursor = connection.cursor(binary=True)
        await cursor.execute(_BARE_STATE, (datetime.now(UTC), HISTORY_LIMIT, user_id))
        await cursor.fetchall()


def scans_of_reads(connection: psycopg.Connection[Any], scale: Scale) -> dict[str, dict[str, int]]:
    """Return the scans of one user's state, and of 100 items and users as of now."""
    rng = np.random.default_rng(scale.world.seed)
    users = rng.integers(1, scale.world.users + 1, 100)
    items = rng.integers(1, scale.world.items + 1, 100)
    now = np.full(100, time.time())
    found: dict[str, dict[str, int]] = {"user_state": {}, "users_as_of": {}, "items_as_of": {}}
    with watched(connection, found["user_state"]):
        connection.execute(
            "select * from user_states(%s, %s, now())", ([f"u{users[0]}"], HISTORY_LIMIT)
        ).fetchall()
    with watched(connection, found["users_as_of"]):
        asof.user_features_as_of(connection, users, now)
    with watched(connection, found["items_as_of"]):
        asof.item_features_as_of(connection, items, now)
    return found


async def measure_states(url: str, scale: Scale) -> dict[str, float]:
    """Read states of people with events one at a time, each beside a bare select of its rows."""
    taken: list[float] = []
    bare: list[float] = []
    pool = open_pool(url, DatabaseConfig(pool_max_size=1))
    async with pool:
        people = [user_id for (user_id,) in await run_async(pool, _PEOPLE, (STATES,))]
        store = FeatureStore(pool, HISTORY_LIMIT)
        for warm in (True, False):
            for number, user_id in enumerate(people[:200] if warm else people):
                # In turns, since the second read of a user finds the pages in the cache.
                for is_bare in (number % 2 == 0, number % 2 == 1):
                    started = time.perf_counter()
                    if is_bare:
                        await _bare_state(pool, user_id)
                    else:
                        await store.user_states([user_id])
                    if not warm:
                        (bare if is_bare else taken).append(time.perf_counter() - started)
    return {
        "user_state_over_select": statistics.median(taken) / statistics.median(bare),
        "user_state_p50_ms": statistics.median(taken) * 1e3,
        "select_p50_ms": statistics.median(bare) * 1e3,
    }


def run(url: str, scale: Scale, report: Report) -> dict[str, Any]:
    """Measure everything and return it; takes about half an hour at the default scale.

    Parameters
    ----------
    url : str
        A server on which the user may create databases.
    scale : Scale
        How much.
    report : callable
        ``report(step, done, total)``.

    Returns
    -------
    dict
        ``load_over_copy, refresh_fraction, refresh_fraction_double_history, asof_rows_per_s,
        asof_over_copy, user_state_over_select``, what they were made of, ``sizes`` in rows and
        bytes, ``rows_read`` by each scan of the refreshes and reads, ``seconds`` and the machine.
    """
    began = time.perf_counter()
    with own_database(url) as own:
        loaded = measure_load(own, scale.world, scale.load_rows, scale.rounds, report)
        end = int(time.time() * 1e6)
        with connect(own) as connection:
            connection.execute("set search_path = shortlist")
            connection.commit()
            fill_catalogue(connection, scale.world)
            fill(connection, scale.world, scale.events, end - MICROS_A_DAY, 0, report)
            once, scans = measure_refreshes(
                connection, scale, end - MICROS_A_DAY // 2, 1 << 10, report
            )
            size_once = sizes(connection)
            as_of = measure_as_of(connection, scale, report)
            states = asyncio.run(measure_states(own, scale))
            reads = scans_of_reads(connection, scale)
            fill(connection, scale.world, scale.events, end - MICROS_A_DAY, 1 << 11, report)
            twice, scans_twice = measure_refreshes(connection, scale, end, 1 << 12, report)
            size_twice = sizes(connection)
    return {
        "load_over_copy": loaded.pop("load_over_copy"),
        "refresh_fraction": once["refresh"] / once["full"],
        "refresh_fraction_double_history": twice["refresh"] / twice["full"],
        "refresh_growth_double_history": twice["refresh"] / once["refresh"],
        "asof_rows_per_s": min(as_of["asof_user_rows_per_s"], as_of["asof_item_rows_per_s"]),
        "asof_over_copy": min(as_of["asof_user_over_copy"], as_of["asof_item_over_copy"]),
        **states,
        **loaded,
        **as_of,
        "seconds": {
            "full_rebuild": once["full"],
            "refresh": once["refresh"],
            "full_rebuild_double_history": twice["full"],
            "refresh_double_history": twice["refresh"],
            "total": time.perf_counter() - began,
        },
        "events": scale.events,
        "new_events": scale.new_events,
        "rows_read": {"refresh": scans, "refresh_double_history": scans_twice, **reads},
        "sizes": {"once": size_once, "double_history": size_twice},
        "machine": machine(),
    }
