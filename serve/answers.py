"""Answers kept for a while, so that the same request id gives the same list.

They are files in a directory that all replicas of a machine share: a retry that reaches
another replica, or a restarted one, still gets the first answer. Replicas on several machines
do not share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import time
from pathlib import Path

from serve.logs import NAME

_LOGGER = logging.getLogger(NAME)

_FORGOTTEN = ".forgotten"


class AnswerStore:
    """First answers by user and request id.

    Parameters
    ----------
    directory : Path
        Shared by the replicas of a machine.
    ttl_s : float
        How long an answer is kept, in seconds.
    entries : int
        Most answers kept; 0 keeps none.
    """

    def __init__(self, directory: Path, ttl_s: float, entries: int) -> None:
        self._directory = directory
        self._ttl_s = ttl_s
        self._entries = entries
        directory.mkdir(parents=True, exist_ok=True)

    def get(self, user_id: str, request_id: str) -> bytes | None:
        """Return the kept answer, None if there is none or it is too old."""
        path = self._path(user_id, request_id)
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_mtime < time.time() - self._ttl_s:
                    return None
                return file.read()
        except FileNotFoundError:
            return None

    def put(self, user_id: str, request_id: str, answer: bytes, as_of: float) -> bytes:
        """Keep an answer, and return the one that counts: the first that was put.

        One whose user was forgotten after `as_of` (unix seconds) is returned, not kept.
        """
        if self._entries == 0:
            return answer
        path = self._path(user_id, request_id)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(answer)
            os.link(temporary, path)
        except FileExistsError:
            kept = self.get(user_id, request_id)
            if kept is not None:
                return kept
            temporary.replace(path)
        except OSError as error:
            # A full disk costs the promise, not the answer.
            _LOGGER.warning("the answer to request id %r is not kept: %s", request_id, error)
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()
        # After the answer is in its place: whichever of the two comes last takes it away.
        if self._forgotten(user_id) >= as_of:
            path.unlink(missing_ok=True)
        return answer

    def forget(self, user_id: str) -> None:
        """Delete the answers of a user, also those that are computed at this moment."""
        if self._entries == 0:
            return
        self._mark(user_id).touch()
        for path in self._directory.glob(f"{_digest(user_id)}-*"):
            path.unlink(missing_ok=True)

    def _mark(self, user_id: str) -> Path:
        return self._directory / f"{_digest(user_id)}{_FORGOTTEN}"

    def _forgotten(self, user_id: str) -> float:
        """Return when the user was forgotten, in unix seconds; minus infinity: not lately."""
        try:
            return self._mark(user_id).stat().st_mtime
        except FileNotFoundError:
            return -math.inf

    def sweep(self) -> int:
        """Delete what is too old, and the oldest beyond the limit; return how many."""
        files = []
        for entry in os.scandir(self._directory):
            try:
                files.append((entry.stat().st_mtime, entry.path))
            except FileNotFoundError:
                continue
        files.sort(reverse=True)
        oldest = time.time() - self._ttl_s
        kept = [path for modified, path in files if modified >= oldest and _is_answer(path)]
        gone = [path for modified, path in files if modified < oldest] + kept[self._entries :]
        for path in gone:
            Path(path).unlink(missing_ok=True)
        return len(gone)

    def _path(self, user_id: str, request_id: str) -> Path:
        return self._directory / f"{_digest(user_id)}-{_digest(request_id)}"


def _is_answer(path: str) -> bool:
    return not path.endswith(_FORGOTTEN)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
