"""What the database knows of the people shown in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

_LIKED = """
select items.title, interactions.value
from interactions
join users using (user_key)
join items using (item_key)
where users.user_id = %s
order by interactions.value desc nulls last, interactions.occurred_at desc,
    interactions.interaction_id desc
limit %s
"""

# Users in order of how much they did, cut into parts: the middle one of each part.
_EXAMPLES = """
with activity as (
    select user_key, count(*) as events from interactions group by user_key
),
parts as (
    select user_key, events, ntile(%(count)s) over (order by events, user_key) as part
    from activity
),
places as (
    select
        user_key, part,
        row_number() over (partition by part order by events, user_key) as place,
        count(*) over (partition by part) as size
    from parts
)
select users.user_id
from places join users using (user_key)
where places.place = (places.size + 1) / 2
order by places.part
"""

_SAMPLE = """
with chosen as (
    select user_key, user_id
    from users
    where exists (select from interactions where interactions.user_key = users.user_key)
    order by hashtextextended(user_id, %(seed)s)
    limit %(count)s
)
select chosen.user_id, coalesce(array_agg(distinct items.item_id), '{}')
from chosen
left join interactions using (user_key)
left join items using (item_key)
where items.item_id is not null
group by chosen.user_id
order by chosen.user_id
"""


def liked(
    connection: psycopg.Connection[Any], user_id: str, count: int
) -> list[tuple[str, float | None]]:
    """Return (title, value) of the items a user valued highest, the latest of equals first."""
    rows = connection.execute(_LIKED, (user_id, count)).fetchall()
    return [(str(title), None if value is None else float(value)) for title, value in rows]


def example_users(connection: psycopg.Connection[Any], count: int) -> list[str]:
    """Return ids of `count` users: a quiet one, a busy one, and others between them."""
    return [str(row[0]) for row in connection.execute(_EXAMPLES, {"count": count})]


def sample_users(
    connection: psycopg.Connection[Any], count: int, seed: int = 0
) -> list[tuple[str, list[str]]]:
    """Return (user id, ids of all items seen) of `count` users, the same ones for a seed."""
    rows = connection.execute(_SAMPLE, {"count": count, "seed": seed})
    return [(str(user_id), list(items)) for user_id, items in rows]


def forget_load(connection: psycopg.Connection[Any]) -> None:
    """Remove what load tests wrote, so that nothing learns from it."""
    with connection.transaction():
        connection.execute("delete from interactions where event_id like 'loadtest-%'")
        connection.execute("delete from event_ids where event_id like 'loadtest-%'")
        connection.execute("delete from answers where scenario = 'loadtest'")
