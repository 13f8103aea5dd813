"""What a figure depends on besides its data and settings: code, versions, machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "numpy", "scipy", "onnxruntime", "faiss-cpu", "faiss-gpu")
# What decides the models beside their settings; features are told apart by the spec's hash.
_MODEL_CODE = (
    "features/encode.py",
    "ranking/fine/*.py",
    "ranking/lists.py",
    "ranking/optimiser.py",
    "ranking/retrieval/*.py",
    "ranking/training*.py",
)
_EVALUATION_CODE = ("ranking/*.py", "ranking/evaluation/*.py")
_BASELINE_CODE = (
    "ranking/evaluation/baseline*.py",
    "ranking/evaluation/events.py",
    "ranking/evaluation/ials.py",
    "ranking/evaluation/tuning.py",
    "ranking/protocols.py",
    "ranking/retrieval/covisitation.py",
)


@cache
def model_code() -> str:
    """Return a hash of the code that trains; taken once, as a process runs what it has read."""
    return _hash_of(_MODEL_CODE)


@cache
def all_code() -> str:
    """Return a hash of the code of models and evaluation."""
    return _hash_of((*_MODEL_CODE, *_EVALUATION_CODE))


@cache
def baseline_code() -> str:
    """Return a hash of the code of the baselines."""
    return _hash_of(_BASELINE_CODE)


def _hash_of(patterns: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in _ROOT.glob(pattern)}):
        name = path.relative_to(_ROOT).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def key_of(parts: Mapping[str, Any]) -> str:
    """Return a hash of what a result depends on."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that compute."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """Return the commit of the checkout that runs, ``-dirty`` when files differ; else None."""
    if shutil.which("git") is None or _git("rev-parse", "--show-toplevel") != str(_ROOT):
        return None
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "ranking", "features",
                   "sql", "serve")  # fmt: skip
    return f"{_git('rev-parse', 'HEAD')}{'-dirty' if changed else ''}"


def machine() -> str:
    """Return the machine in words."""
    return (
        f"{len(os.sched_getaffinity(0))} CPU cores, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )


def _git(*arguments: str) -> str | None:
    result = subprocess.run(
        ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() if result.returncode == 0 else None
