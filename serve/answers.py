"""Answers kept for a while, so that the same request id gives the same list.

They are files in a directory that all replicas of a machine share: a retry that reaches
another replica, or a restarted one, still gets the first answer. Replicas on several machines
do not share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from pathlib import Path

from serve.logs import NAME

_LOGGER = logging.getLogger(NAME)


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

    def put(self, user_id: str, request_id: str, answer: bytes) -> bytes:
        """Keep an answer, and return the one that counts: the first that was put."""
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
        return answer

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
        gone = [
            path
            for place, (modified, path) in enumerate(files)
            if modified < oldest or place >= self._entries
        ]
        for path in gone:
            Path(path).unlink(missing_ok=True)
        return len(gone)

    def _path(self, user_id: str, request_id: str) -> Path:
        # NUL cannot be part of an id, so no two pairs share a key.
        key = f"{user_id}\0{request_id}".encode()
        return self._directory / hashlib.sha256(key).hexdigest()
