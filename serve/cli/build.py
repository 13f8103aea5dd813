"""The steps from ratings to a release, each skipped where its result is there already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import psycopg

    from serve.cli.console import Report, Steps
    from serve.config import Settings

_COUNTS = """
select
    (select count(*) from users), (select count(*) from items),
    (select count(*) from interactions)
"""


@dataclass(frozen=True, slots=True)
class Made:
    """What there is to serve: the size of the data, and the id of the current release."""

    users: int
    items: int
    interactions: int
    release: str


def build(settings: Settings, connection: psycopg.Connection[Any], steps: Steps) -> Made:
    """Load the sample, refresh, train and build a release, as far as any is missing."""
    from features import load, refresh, schema

    with steps("schema", "Tables and views are applied"):
        schema.apply(connection)
    users, items, interactions = counts(connection)
    fresh = interactions == 0
    if fresh:
        with steps("load", "The MovieLens sample is loaded") as report:
            # As if it ended today: trending and new items mean something then.
            load.load(connection, "sample", rebase_to_now=True, progress=report)
        users, items, interactions = counts(connection)
    else:
        steps.skip("load", f"{users:,} users, {items:,} items, {interactions:,} interactions")
    current = current_release(settings.home)
    if fresh or current is None:
        with steps("features", "Features are computed in SQL") as report:
            refresh.refresh(connection, report)
    else:
        steps.skip("features", "Features")
    if fresh or current is None:
        current = make_release(settings, connection, steps)
    else:
        steps.skip("release", f"Release {current}")
    return Made(users, items, interactions, current)


def counts(connection: psycopg.Connection[Any]) -> tuple[int, int, int]:
    """Return how many users, items and interactions the database has."""
    with connection.transaction():
        row = connection.execute(_COUNTS).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])
