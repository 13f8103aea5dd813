"""The releases of a home directory: which there are, which one serves, which one did before.

``releases/<id>/`` never changes once it is there. ``releases/current`` and
``releases/previous`` are symlinks, replaced by one rename, so that a reader sees the old or the
new one and nothing else.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from features.errors import ReleaseError
from ranking.release.load import check_release
from ranking.release.manifest import NAME, sync

CURRENT, PREVIOUS = "current", "previous"

_ID = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-[0-9a-f]{4}")


def release_path(home: Path, release: str) -> Path:
    """Return the directory of a release.

    Raises
    ------
    ReleaseError
        If `release` is no release id, or there is none of this id.
    """
    path = home / "releases" / release
    if not _ID.fullmatch(release) or not (path / NAME).is_file():
        found = list_releases(home)
        known = f"there are {', '.join(found[:5])}" if found else "there is none yet"
        raise ReleaseError(f"no release {release[:64]!r} in {home / 'releases'}: {known}")
    return path


def list_releases(home: Path) -> list[str]:
    """Return the ids of all releases, newest first."""
    directory = home / "releases"
    if not directory.is_dir():
        return []
    found = (path.name for path in directory.iterdir() if (path / NAME).is_file())
    return sorted((name for name in found if _ID.fullmatch(name)), reverse=True)


def current_release(home: Path) -> str | None:
    """Return the id of the release that serves, None if there is none."""
    return _target(home, CURRENT)


def promote(home: Path, release: str) -> None:
    """Make a release the current one, after checking all of it.

    Raises
    ------
    ReleaseError
        If it is unknown, damaged or of another feature spec; the current one stays.
    """
    check_release(release_path(home, release))
    with _lock(home):
        current = current_release(home)
        if current == release:
            return
        if current is not None:
            _point(home, PREVIOUS, current)
        _point(home, CURRENT, release)


def rollback(home: Path) -> str:
    """Make the release current that was so before, and return its id.

    A second rollback returns to where the first one began.

    Raises
    ------
    ReleaseError
        If there is no previous release or it is damaged; the current one stays.
    """
    previous = _target(home, PREVIOUS)
    if previous is None or previous == current_release(home):
        raise ReleaseError(
            f"there is no previous release in {home / 'releases'}; choose one with "
            "'shortlist release promote ID'"
        )
    promote(home, previous)
    return previous


def _target(home: Path, link: str) -> str | None:
    try:
        return (home / "releases" / link).readlink().name
    except OSError:
        return None


def _point(home: Path, link: str, release: str) -> None:
    directory = home / "releases"
    aside = directory / f".{link}-{os.getpid()}"
    aside.unlink(missing_ok=True)
    aside.symlink_to(release)
    aside.replace(directory / link)
    sync(directory)


@contextmanager
def _lock(home: Path) -> Iterator[None]:
    """Keep other processes from moving the links at the same time."""
    with (home / "releases" / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
