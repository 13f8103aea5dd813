"""Load a data set into PostgreSQL: good rows are kept, each bad one is reported.

A file is read in blocks; each is one transaction that also records how far the file is, so a
load that was cut goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import psycopg

from features import indexes, partitions
from features.errors import InputError
from features.ingest import ledger
from features.ingest.ahead import ahead
from features.ingest.blocks import BlockWriter
from features.ingest.items import load_items
from features.ingest.mapping import Format, Preset, Wish
from features.ingest.presets import DataSet, EventFile, find_files
from features.ingest.readers import Reader, open_events
from features.ingest.rejects import Rejects
from features.ingest.rows import RejectedRow
from features.schema import NOT_APPLIED, not_applied

Progress = Callable[[str, int, int], None]
"""Called with the name of the step, what is done and what there is in all (bytes of a file)."""

_SECONDS_A_DAY = 86_400
# From this size on, indexes are built at the end of the first load.
_LARGE_BYTES = 4 << 20
_ALL = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What a load did.

    Attributes
    ----------
    users, items, interactions : int
        Rows that are new (or, for items, changed).
    rejected : int
        Rows left out.
    rejects : list of RejectedRow
        The first hundred of them, items first, in the order of the lines.
    already_loaded : int
        Events that the database had before.
    shifted_days : int
        Days by which all times were moved (``rebase_to_now``).
    seconds : float
        Duration.
    resumed : dict of str to int
        Files that an earlier load began, and the line from which this one went on.
    loaded_before : list of str
        Files that an earlier load finished: nothing was read of them.
    rejects_file : str or None
        Where all rejected rows are.
    """

    users: int
    items: int
    interactions: int
    rejected: int
    rejects: list[RejectedRow]
    already_loaded: int
    shifted_days: int
    seconds: float
    resumed: dict[str, int] = field(default_factory=dict)
    loaded_before: list[str] = field(default_factory=list)
    rejects_file: str | None = None


def _ignore(step: str, done: int, total: int) -> None:
    """Report progress to nobody."""


def load(
    connection: psycopg.Connection[Any],
    source: Path | str,
    preset: Preset = "auto",
    rebase_to_now: bool = False,
    progress: Progress | None = None,
    *,
    kind: Format = "auto",
    wish: Wish | None = None,
    rejects: Path | None = None,
    again: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> LoadReport:
    """Load a data set; loading it twice changes nothing.

    Parameters
    ----------
    connection : psycopg.Connection
        Idle connection; each block of about 4 MB is committed.
    source : Path, "sample" or "-"
        Folder, or a file of events whose folder may hold the items; ``"sample"`` is the
        MovieLens sample of this package, ``"-"`` standard input.
    preset : str
        Published layout of the files; ``auto`` tells it by their names.
    rebase_to_now : bool
        Move all times by a whole number of days so that the newest event lies in the last 24
        hours; the attribute ``year`` stays. The files are read twice.
    progress : callable, optional
        Called as ``progress(step, done, total)``, in bytes of the file on disk.
    kind : {"auto", "csv", "tsv", "dat", "jsonl", "parquet"}
        How files are written whose names do not tell it.
    wish : Wish, optional
        Which column is what, where it is not called by a usual name.
    rejects : Path, optional
        CSV file for all rejected rows.
    again : bool
        Read files once more that were loaded before; events that are there stay single.
    on_rows : callable, optional
        Called with the number of rows of each block, good or bad, once it is committed.

    Returns
    -------
    LoadReport

    Raises
    ------
    InputError
        A file is missing, empty or lacks a column: nothing was loaded. An archive is damaged:
        what came before the damage is loaded.
    SchemaError
        The schema was not applied.
    """
    if source == "sample":
        with as_file(files("features") / "sample") as folder:
            return load(
                connection, folder, "movielens", rebase_to_now, progress, rejects=rejects,
                again=again, on_rows=on_rows,
            )  # fmt: skip
    found = find_files(Path(source), preset, kind, wish or Wish())
    job = _Job(connection, found, rebase_to_now, progress or _ignore, Rejects(rejects), again)
    try:
        return job.run(on_rows or (lambda rows: None))
    except NOT_APPLIED as error:
        raise not_applied(error) from error
    finally:
        job.close()


class _Job:
    """One load."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        found: DataSet,
        rebase: bool,
        progress: Progress,
        rejects: Rejects,
        again: bool,
    ) -> None:
        self._connection = connection
        self._found = found
        self._rebase = rebase
        self._progress = progress
        self._rejects = rejects
        self._again = again
        self._now = time.time()
        self._stdin: Reader | None = None
        streams = [file.name for file in found.events if file.is_stream]
        if rebase and streams:
            raise InputError(
                f"{streams[0]} cannot be read twice, as rebasing to now needs: load it from a file"
            )

    def close(self) -> None:
        self._rejects.close()
        if self._stdin is not None:
            self._stdin.close()

    def run(self, on_rows: Callable[[int], None]) -> LoadReport:
        started = time.perf_counter()
        marks = [self._mark(file) for file in self._found.events]
        with self._connection.transaction():
            self._connection.execute("set local search_path = shortlist, pg_temp")
            known = [self._known(*pair) for pair in zip(self._found.events, marks, strict=True)]
        for entry in known:
            if entry is not None:
                # What an earlier run rejected stays in the file.
                self._rejects.resume(entry.name, _ALL if entry.is_finished else entry.rows_done)
        days = self._days([entry for entry in known if entry is not None])
        partitions.ensure(self._connection)
        items = self._load_items(days)
        item_file = self._found.items
        writer = BlockWriter(
            self._connection, self._rejects, None if item_file is None else item_file.path.name
        )
        resumed: dict[str, int] = {}
        before = []
        is_large = sum(_size(file) for file in self._found.events) >= _LARGE_BYTES
        with indexes.deferred(self._connection, is_large):
            for file, mark, entry in zip(self._found.events, marks, known, strict=True):
                if entry is not None and entry.is_finished:
                    before.append(file.name)
                    writer.counts.already_loaded += entry.interactions
                    continue
                if entry is not None and entry.rows_done:
                    resumed[file.name] = entry.rows_done + 1
                self._load_events(file, entry or self._begin(file, mark, days), writer, on_rows)
            if is_large:
                self._progress("indexes", 0, 0)
        if writer.counts.interactions or items:
            with self._connection.transaction():
                self._connection.execute(
                    "analyze shortlist.users, shortlist.items, shortlist.interactions"
                )
        counts, rejects = writer.counts, self._rejects
        return LoadReport(
            users=counts.users,
            items=items + counts.items,
            interactions=counts.interactions,
            rejected=rejects.count,
            rejects=rejects.first,
            already_loaded=counts.already_loaded,
            shifted_days=days,
            seconds=time.perf_counter() - started,
            resumed=resumed,
            loaded_before=before,
            rejects_file=str(rejects.path) if rejects.path and rejects.count else None,
        )

    def _open(self, file: EventFile) -> Reader:
        if file.is_stream:
            # Read once only: what the first look opened is what is read.
            self._stdin = self._stdin or open_events(file)
            return self._stdin
        return open_events(file)

    def _mark(self, file: EventFile) -> str:
        """Check a file's columns and return its fingerprint."""
        reader = self._open(file)
        if file.path is None or file.is_stream:
            return ""
        reader.close()
        item_file = self._found.items
        what = f"{file.format} {file.layout} {reader.mapping} {self._rebase} {item_file is None}"
        return ledger.fingerprint(file.path, what)

    def _known(self, file: EventFile, mark: str) -> ledger.Entry | None:
        if not mark or self._again:
            return None
        return ledger.find(self._connection, file.name, mark)

    def _begin(self, file: EventFile, mark: str, days: int) -> ledger.Entry:
        if not mark:
            return ledger.Entry(0, file.name)
        with self._connection.transaction():
            self._connection.execute("set local search_path = shortlist, pg_temp")
            return ledger.begin(self._connection, file.name, mark, days)

    def _days(self, known: list[ledger.Entry]) -> int:
        """Return the days by which times move; what an earlier run settled holds."""
        if not self._rebase:
            return 0
        if known:
            return known[0].shifted_days
        newest = None
        for file in self._found.events:
            reader = self._open(file)
            total = _size(file)
            for piece in ahead(reader.pieces(0, self._now)):
                if len(piece.events.moment):
                    last = int(piece.events.moment.max())
                    newest = last if newest is None else max(newest, last)
                self._progress("newest event", piece.bytes_done, total)
            reader.close()
        return 0 if newest is None else int((self._now - newest / 1e6) // _SECONDS_A_DAY)

    def _load_items(self, days: int) -> int:
        file = self._found.items
        if file is None:
            return 0
        size = file.path.stat().st_size
        with self._connection.transaction():
            self._connection.execute("set local search_path = shortlist, pg_temp")
            self._connection.execute(ledger.LOCK)
            changed = load_items(
                self._connection,
                file,
                days * _SECONDS_A_DAY,
                self._rejects.add,
                lambda done: self._progress("items", min(done, size), size),
            )
        self._progress("items", size, size)
        return changed

    def _load_events(
        self,
        file: EventFile,
        entry: ledger.Entry,
        writer: BlockWriter,
        on_rows: Callable[[int], None],
    ) -> None:
        reader = self._open(file)
        total = _size(file)
        self._progress("interactions", 0, total)
        try:
            for piece in ahead(reader.pieces(entry.rows_done, self._now)):
                if piece.rows_done > entry.rows_done:
                    shift = entry.shifted_days * _SECONDS_A_DAY
                    writer.write(entry, piece.events, piece.rows_done, shift)
                    on_rows(len(piece.events.line) + len(piece.events.rejects))
                self._progress("interactions", piece.bytes_done, total)
                if piece.damage is not None:
                    raise InputError(
                        f"{file.name}: the compressed file is damaged after line"
                        f" {entry.rows_done:,} ({piece.damage}); {entry.interactions:,}"
                        " interactions before the damage are loaded and stay; with a whole copy"
                        " of the file the same command adds what is missing"
                    )
        finally:
            reader.close()
        with self._connection.transaction():
            self._connection.execute("set local search_path = shortlist, pg_temp")
            ledger.finish(self._connection, entry)
        self._progress("interactions", max(total, 1), max(total, 1))


def _size(file: EventFile) -> int:
    return 0 if file.path is None else file.path.stat().st_size
