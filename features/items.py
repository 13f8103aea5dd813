"""Changes of the catalogue: create, replace and retire items, and follow what changed.

Every row of a batch gets its own answer; a bad one never keeps the others from being stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from features.catalogue import CHANGED_QUERY, catalogue_of
from features.ids import ATTRIBUTE_LENGTH, CATEGORIES, TITLE_LENGTH, id_problem
from features.real import is_float64, is_moment, shown
from features.retry import run_async
from features.states import Catalogue

Pool = AsyncConnectionPool[AsyncConnection[Any]]
ItemStatus = Literal["created", "updated", "unchanged", "rejected"]
Attribute = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class ItemInput:
    """One item to create or replace as a whole.

    Attributes
    ----------
    item_id : str
        External id.
    title : str or None
        Shown name.
    categories : sequence of str
        The first one is the item's main category.
    attributes : mapping
        Further fields: text, numbers, truth values.
    available : bool
        False keeps it out of recommendations.
    created_at : float or None
        Unix seconds; None keeps the stored time, or means now for a new item.
    """

    item_id: str
    title: str | None = None
    categories: Sequence[str] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    available: bool = True
    created_at: float | None = None


@dataclass(frozen=True, slots=True)
class ItemResult:
    """What became of one item."""

    item_id: str
    status: ItemStatus
    reason: str | None = None


# An unchanged item is not written, so followers of the catalogue do not read it again.
_UPSERT_ITEMS: str = """
with incoming as (
    select * from jsonb_to_recordset(%s::jsonb) as incoming (
        position integer, item_id text, title text, categories text[], attributes jsonb,
        available boolean, created_at double precision
    )
)
insert into items as stored
    (item_id, title, categories, attributes, available, created_at)
select
    incoming.item_id, incoming.title, incoming.categories, incoming.attributes,
    incoming.available,
    coalesce(
        to_timestamp(incoming.created_at),
        case when known.item_key is null then now() else known.created_at end
    )
from incoming left join items as known on incoming.item_id = known.item_id
order by incoming.position
on conflict (item_id) do update set
    title = excluded.title, categories = excluded.categories,
    attributes = excluded.attributes, available = excluded.available,
    created_at = excluded.created_at
where (stored.title, stored.categories, stored.attributes, stored.available, stored.created_at)
    is distinct from (
        excluded.title, excluded.categories, excluded.attributes, excluded.available,
        excluded.created_at
    )
returning item_id, xmax = 0
"""

_REFRESHED_AT: str = "select unix_seconds(as_of) from refresh_point"

_RETIRE_ITEM: str = """
with found as (select item_key, available from items where item_id = %s),
retired as (
    update items set available = false
    where item_key in (select found.item_key from found where found.available)
    returning item_key
)
select (select count(*) from found), (select count(*) from retired)
"""


def _item_problem(item: ItemInput) -> str | None:
    """Return why an item cannot be stored, ``code: detail``, or None."""
    problem = id_problem(item.item_id)
    if problem is not None:
        return f"invalid_item_id: item_id {problem}"
    if item.title:
        problem = id_problem(item.title, TITLE_LENGTH)
        if problem is not None:
            return f"invalid_title: title {problem}"
    if len(item.categories) > CATEGORIES:
        return f"invalid_categories: {len(item.categories)} given, at most {CATEGORIES} allowed"
    for category in item.categories:
        problem = id_problem(category)
        if problem is not None:
            return f"invalid_categories: a category {problem}"
    for name, value in item.attributes.items():
        for text in (name, value if isinstance(value, str) and value else "-"):
            problem = id_problem(text, ATTRIBUTE_LENGTH)
            if problem is not None:
                return f"invalid_attributes: attribute {name[:64]!r} {problem}"
        if isinstance(value, int | float) and not is_float64(value):
            return f"invalid_attributes: attribute {name[:64]!r} is {shown(value)}, expected finite"
    if item.created_at is not None and not is_moment(item.created_at):
        return (
            f"invalid_created_at: created_at is {shown(item.created_at)}, expected unix seconds of"
            " the years 1 to 9999"
        )
    return None


def _document(position: int, item: ItemInput) -> dict[str, Any]:
    return {
        "position": position,
        "item_id": item.item_id,
        "title": item.title or None,
        "categories": list(dict.fromkeys(item.categories)),
        "attributes": dict(item.attributes),
        "available": item.available,
        "created_at": item.created_at,
    }


async def upsert_items(pool: Pool, items: Sequence[ItemInput]) -> list[ItemResult]:
    """Create or replace a batch of items with one statement; returns after the commit.

    Parameters
    ----------
    pool : AsyncConnectionPool
        Open pool of :func:`features.database.open_pool`.
    items : sequence of ItemInput
        When an id comes twice, the last one counts and both get its answer.

    Returns
    -------
    list of ItemResult
        One for each item, in order.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached; the batch may be sent again.
    """
    problems = [_item_problem(item) for item in items]
    valid = {
        item.item_id: _document(position, item)
        for position, (item, problem) in enumerate(zip(items, problems, strict=True))
        if problem is None
    }
    written: dict[str, bool] = {}
    if valid:
        written = dict(await run_async(pool, _UPSERT_ITEMS, (json.dumps([*valid.values()]),)))
    results = []
    for item, problem in zip(items, problems, strict=True):
        status: ItemStatus = "unchanged"
        if problem is not None:
            status = "rejected"
        elif item.item_id in written:
            status = "created" if written[item.item_id] else "updated"
        results.append(ItemResult(item.item_id, status, problem))
    return results


async def retire_item(pool: Pool, item_id: str) -> bool | None:
    """Take an item out of recommendations; its events and features stay.

    Returns
    -------
    bool or None
        Whether it was available; None if no item has this id.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached.
    """
    if id_problem(item_id) is not None:
        return None
    found, retired = (await run_async(pool, _RETIRE_ITEM, (item_id,)))[0]
    return bool(retired) if found else None


async def changed_items(pool: Pool, since: int) -> Catalogue:
    """Return the items that changed after the watermark `since`, which may be none.

    The watermark of the answer is the `since` of the next call. No change is missed: changes
    are numbered in the order in which they become visible.

    Parameters
    ----------
    pool : AsyncConnectionPool
        Open pool of :func:`features.database.open_pool`.
    since : int
        ``Catalogue.watermark`` of the last read.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached.
    """
    return catalogue_of(await run_async(pool, CHANGED_QUERY, (since,)), since)


async def refreshed_at(pool: Pool) -> float:
    """Return the moment of the last refresh, in unix seconds.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached.
    """
    return float((await run_async(pool, _REFRESHED_AT, ()))[0][0])
