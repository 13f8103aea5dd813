"""Apply ``sql/*.sql`` once, in order, with a record of what was applied.

``01`` to ``09`` make tables: such a file is never run twice, and a change to one that was
applied is refused. ``10`` to ``98`` make functions and views out of them: when one changed, it
and all later ones are made anew, since each may build on those before it. These are Jinja
templates, given ``windows``, the days of the event counts; another list changes them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import jinja2
import psycopg
from psycopg import errors, sql

from features.errors import SchemaError
from features.partitions import PARTITION_DAYS, ensure
from features.spec import WINDOWS_DAYS

_LOCK = "shortlist.schema"
_BOOTSTRAP, _FIRST_VIEW, _CHECKS = "00", "10", "99"

NOT_APPLIED = (
    errors.UndefinedTable,
    errors.UndefinedFunction,
    errors.UndefinedColumn,
    errors.InvalidSchemaName,
)
"""What PostgreSQL says where the schema is missing or of another version."""


def not_applied(error: psycopg.Error) -> SchemaError:
    """Return the error to raise instead of one of `NOT_APPLIED`."""
    return SchemaError(
        f"{error.diag.message_primary}: run 'shortlist db apply', then restart what uses the"
        " database"
    )


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One file of ``sql/``: its name, such as ``01_tables.sql``, and the SQL it holds."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def sql_files(windows: Sequence[int] = WINDOWS_DAYS) -> list[SqlFile]:
    """Return the files of ``sql/`` in the order in which they apply.

    Parameters
    ----------
    windows : sequence of int
        Days of each window that the views count, ascending.
    """
    templates = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - SQL, no HTML; `windows` are numbers
    )
    found = []
    for entry in sorted(files("sql").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".sql"):
            text = entry.read_text(encoding="utf-8")
            if entry.name >= _FIRST_VIEW:
                text = templates.from_string(text).render(windows=list(windows))
            found.append(SqlFile(entry.name, text))
    return found


def run_script(connection: psycopg.Connection[Any], text: str) -> psycopg.Cursor[Any]:
    """Run SQL text of this package, several statements at once."""
    return connection.execute(sql.SQL(text))


def _pending(ours: list[SqlFile], applied: dict[str, str]) -> list[SqlFile]:
    """Return what must run, in order; refuse what cannot."""
    tables = [file for file in ours if file.name < _FIRST_VIEW]
    views = [file for file in ours if file.name >= _FIRST_VIEW]
    for name in applied.keys() - {file.name for file in ours}:
        if name < _FIRST_VIEW:
            raise SchemaError(
                f"the database has {name!r} applied, which this version does not know: expected"
                f" files up to {tables[-1].name!r}; use the version that made the database, or"
                " an empty database"
            )
    for file in tables:
        known = applied.get(file.name)
        if known not in (None, file.sha256):
            raise SchemaError(
                f"{file.name} changed after it was applied: sha256 is {file.sha256[:12]}…,"
                f" applied was {known[:12]}…; restore the file and put the change into a new one"
                " with the next free number below 10"
            )
    pending = [file for file in tables if file.name not in applied]
    gone = {name for name in applied if name >= _FIRST_VIEW} - {file.name for file in views}
    changed = [file for file in views if applied.get(file.name) != file.sha256]
    first = min([file.name for file in changed] + sorted(gone), default=None)
    if first is not None:
        pending += [file for file in views if file.name >= first]
    return pending


def apply(
    connection: psycopg.Connection[Any],
    files: list[SqlFile] | None = None,
    partition_days: int = PARTITION_DAYS,
) -> list[str]:
    """Bring the database to this version; a second call changes nothing.

    One transaction: all or nothing. Calls at the same time wait for each other.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection; committed on success, rolled back on failure.
    files : list of SqlFile, optional
        Instead of the files of ``sql/``.
    partition_days : int
        Days of a partition of raw events, where one is made.

    Returns
    -------
    list of str
        Names of the files that were run.

    Raises
    ------
    SchemaError
        A table file changed after it was applied, or the database is of a newer version.
    """
    known = sql_files() if files is None else files
    ours = [file for file in known if _BOOTSTRAP < file.name[:2] < _CHECKS]
    with connection.transaction():
        connection.execute("select pg_advisory_xact_lock(hashtextextended(%s, 0))", (_LOCK,))
        for file in known:
            if file.name.startswith(_BOOTSTRAP):
                run_script(connection, file.text)
        connection.execute("set local search_path = shortlist")
        rows = connection.execute("select name, sha256 from schema_versions").fetchall()
        applied: dict[str, str] = dict(rows)
        pending = _pending(ours, applied)
        for file in pending:
            run_script(connection, file.text)
            connection.execute(
                "insert into schema_versions (name, sha256) values (%s, %s)"
                " on conflict (name) do update set sha256 = excluded.sha256, applied_at = now()",
                (file.name, file.sha256),
            )
        stale = sorted(applied.keys() - {file.name for file in ours})
        if stale:
            connection.execute("delete from schema_versions where name = any(%s)", (stale,))
        ensure(connection, partition_days)
    return [file.name for file in pending]
