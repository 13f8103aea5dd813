"""Which indexes and tables PostgreSQL reads for a step, functions included: ``auto_explain``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

_SCAN = re.compile(
    r"(Seq Scan|Index Scan|Index Only Scan|Bitmap Index Scan)(?: Backward)?(?: using (\S+))?"
    r" on (\S+).*?\(actual rows=([\d.]+) loops=(\d+)\)"
)
# Parts and their indexes under the names of their parents.
_PARENTS = """
select part.relname, parent.relname
from pg_inherits
inner join pg_class as part on pg_inherits.inhrelid = part.oid
inner join pg_class as parent on pg_inherits.inhparent = parent.oid
"""
_SETTINGS = (
    "load 'auto_explain'",
    "set auto_explain.log_min_duration = 0",
    "set auto_explain.log_nested_statements = on",
    "set auto_explain.log_analyze = on",
    "set auto_explain.log_timing = off",
    "set auto_explain.log_buffers = off",
    "set client_min_messages = log",
)


@contextmanager
def watched(connection: psycopg.Connection[Any], found: dict[str, int]) -> Iterator[None]:
    """Add the scans of all statements within to `found`.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle; the statements must run on it. Without the right to load ``auto_explain``, which
        takes a superuser, `found` stays empty.
    found : dict of str to int
        Gets ``"Index Only Scan using <index> on <table>"`` and the rows that came out of it.
        Partitions count under the name of their parent; scans without a row are left out.
    """
    try:
        for setting in _SETTINGS:
            connection.execute(setting)
    except errors.InsufficientPrivilege:
        connection.rollback()
        yield
        return
    parents = dict(connection.execute(_PARENTS).fetchall())
    connection.commit()
    counts: Counter[str] = Counter()

    def read(message: psycopg.errors.Diagnostic) -> None:
        for kind, index, table, rows, loops in _SCAN.findall(message.message_primary or ""):
            if round(float(rows) * int(loops)) and not table.startswith("pg_"):
                using = f" using {parents.get(index, index)}" if index else ""
                name = table.removeprefix("shortlist.")
                where = "" if name == index else f" on {parents.get(name, name)}"
                counts[f"{kind}{using}{where}"] += round(float(rows) * int(loops))

    connection.add_notice_handler(read)
    try:
        yield
    finally:
        connection.rollback()  # the plan of the last statement comes with the end of its portal
        connection.remove_notice_handler(read)
        connection.execute("reset client_min_messages")
        connection.execute("set auto_explain.log_min_duration = -1")
        connection.commit()
        found.update(sorted(counts.items(), key=lambda pair: -pair[1]))
