"""The manifest of a release: what it consists of, and proof that nothing else is in it.

Of 4,300 damaged index files Faiss read more than half without complaint and then answered
wrongly, and no single-bit flip in an ONNX file was noticed at all. So every file is hashed
before anything is loaded from it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from features.errors import ReleaseError

NAME = "manifest.json"
FORMAT = 1

_FILE = re.compile(r"[a-z0-9_]+(\.[a-z0-9]+)+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What ``manifest.json`` says.

    Attributes
    ----------
    release : str
        Id.
    files : dict of str to str
        Name and sha256 (hex) of every other file of the directory.
    facts : dict
        All else: ``created``, ``run``, ``spec_hash``, ``items``, ``watermark``, ``verified``.
    """

    release: str
    files: dict[str, str]
    facts: dict[str, Any]


def sha256(path: Path) -> str:
    """Return the sha256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(directory: Path, release: str, facts: Mapping[str, Any]) -> None:
    """Hash all files of a directory, write the manifest and flush everything to the disk."""
    paths = sorted(path for path in directory.iterdir() if path.name != NAME)
    content = {
        "format": FORMAT,
        "release": release,
        **facts,
        "files": {path.name: sha256(path) for path in paths},
    }
    path = directory / NAME
    path.write_text(json.dumps(content, indent=2) + "\n")
    for file in (*paths, path):
        sync(file)
    sync(directory)


def read_manifest(directory: Path) -> Manifest:
    """Read a manifest without looking at the files it lists.

    Raises
    ------
    ReleaseError
        If it is missing, no JSON, of another format or lists names that are no plain files.
    """
    path = directory / NAME
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise ReleaseError(
            f"{directory.name} is no release: it has no {NAME}; list them with "
            "'shortlist release list'"
        ) from error
    except (OSError, ValueError) as error:
        raise ReleaseError(f"{directory.name}: {NAME} cannot be read: {error}") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ReleaseError(
            f"{directory.name}: {NAME} has format {found!r}, expected {FORMAT}; build it again"
        )
    release, files = content.pop("release", None), content.pop("files", None)
    if release != directory.name:
        raise ReleaseError(f"{directory.name}: {NAME} belongs to release {release!r}")
    if not isinstance(files, dict) or not files:
        raise ReleaseError(f"{directory.name}: {NAME} lists no files")
    for name, digest in files.items():
        if not _FILE.fullmatch(name) or name == NAME:
            raise ReleaseError(f"{directory.name}: {NAME} lists {name!r}, which is no file name")
        if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
            raise ReleaseError(f"{directory.name}: {NAME} has no sha256 for {name}")
    return Manifest(release, files, content)


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Check that a directory holds exactly the files of its manifest, bit for bit.

    Raises
    ------
    ReleaseError
        With the name of the first file that is missing, surplus, no regular file or changed.
    """
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name != NAME and entry.name not in manifest.files:
            raise ReleaseError(f"{directory.name}: {entry.name} is not in {NAME}")
    for name, digest in manifest.files.items():
        path = directory / name
        try:
            # A link could be pointed elsewhere after the check.
            regular = stat.S_ISREG(path.lstat().st_mode)
        except FileNotFoundError as error:
            raise ReleaseError(f"{directory.name}: {name} is missing; build it again") from error
        if not regular:
            raise ReleaseError(f"{directory.name}: {name} is no regular file")
        found = sha256(path)
        if found != digest:
            raise ReleaseError(
                f"{directory.name}: {name} is damaged: sha256 {found[:12]}…, "
                f"expected {digest[:12]}…; build the release again"
            )


def sync(path: Path) -> None:
    """Flush a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
