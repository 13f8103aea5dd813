"""A release: all that must change together, in one directory that never changes.

``manifest`` lists and hashes its files, ``build`` makes one of a model run, ``load`` turns one
into a pipeline, ``store`` says which one serves.
"""

from ranking.release.build import build_release
from ranking.release.load import (
    Release,
    ReleaseConfig,
    check_release,
    load_ranker,
    load_release,
    open_pipeline,
)
from ranking.release.manifest import Manifest
from ranking.release.store import (
    current_release,
    list_releases,
    promote,
    release_path,
    rollback,
)

__all__ = [
    "Manifest",
    "Release",
    "ReleaseConfig",
    "build_release",
    "check_release",
    "current_release",
    "list_releases",
    "load_ranker",
    "load_release",
    "open_pipeline",
    "promote",
    "release_path",
    "rollback",
]
