"""Items of a file into the table: staged by COPY, then one statement."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg

from features.ingest.item_files import read_items
from features.ingest.presets import ItemFile
from features.ingest.rows import RejectedRow

_STAGE = """
create temp table staged_items (
    line bigint, item_id text, title text, categories text[], attributes jsonb,
    created double precision
) on commit drop
"""

# A line that says the same as an earlier one is a duplicate; the earliest is kept.
_KEEP = """
with doubles as (
    select line, row_number() over (partition by item_id order by line) as copy
    from staged_items
)
delete from staged_items using doubles
where staged_items.line = doubles.line and doubles.copy > 1
returning staged_items.line, staged_items.item_id
"""

_INSERT = """
insert into items (item_id, title, categories, attributes, created_at)
select item_id, title, categories, attributes, to_timestamp(created + %s)
from staged_items
order by line
on conflict (item_id) do update set
    title = excluded.title, categories = excluded.categories,
    attributes = excluded.attributes,
    created_at = least(items.created_at, excluded.created_at)
where (items.title, items.categories, items.attributes, items.created_at) is distinct from
    (excluded.title, excluded.categories, excluded.attributes,
     least(items.created_at, excluded.created_at))
"""


def load_items(
    connection: psycopg.Connection[Any],
    file: ItemFile,
    shift: int,
    reject: Callable[[list[RejectedRow]], None],
    reads: Callable[[int], None],
) -> int:
    """Store the items of `file` and return how many are new or changed.

    Parameters
    ----------
    connection : psycopg.Connection
        In a transaction with the schema ``shortlist`` in its path.
    file : ItemFile
        What to read.
    shift : int
        Seconds added to the time of creation.
    reject : callable
        Gets the rows that were left out, in the order of their lines.
    reads : callable
        Gets the bytes read so far.

    Raises
    ------
    InputError
        The file is empty, damaged or lacks a column.
    """
    connection.execute(_STAGE)
    rejects: list[RejectedRow] = []
    with connection.cursor().copy("copy staged_items from stdin") as copy:
        copy.set_types(["int8", "text", "text", "text[]", "text", "float8"])
        for item in read_items(file, rejects.append, reads):
            attributes = json.dumps(item.attributes)
            copy.write_row(
                (item.line, item.item_id, item.title, item.categories, attributes, item.created)
            )
    connection.execute("analyze staged_items")
    for line, item_id in connection.execute(_KEEP).fetchall():
        reason = f"{item_id!r} stands on an earlier line too"
        rejects.append(RejectedRow(file.path.name, line, "", reason))
    reject(sorted(rejects, key=lambda row: row.line))
    return connection.execute(_INSERT, [shift]).rowcount
