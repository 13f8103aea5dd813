"""From a release directory to what serves, in this process or with a ranker elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from ranking.fine.ranker import OnnxRanker, Ranker
from ranking.freshness import MaxAges
from ranking.onnx_model import OnnxModel
from ranking.release import check_release, load_release, open_pipeline
from ranking.release.load import RANKER
from serve.config import Settings
from serve.serving import Serving

RankerOf = Callable[[str, threading.Lock], Ranker]
"""Release id and the lock of its pipeline to its ranker."""


def load_serving(path: Path, settings: Settings, ranker_of: RankerOf | None = None) -> Serving:
    """Load a release.

    Parameters
    ----------
    path : Path
        Its directory.
    settings : Settings
    ranker_of : callable or None
        Gives the ranker; None runs the release's own here.

    Raises
    ------
    ReleaseError
        The release is damaged, incomplete or of another feature spec.
    """
    release = load_release(path)
    turn = threading.Lock()
    ranker = None if ranker_of is None else ranker_of(release.id, turn)
    limits = MaxAges(settings.features.item_max_age_s, settings.features.candidate_max_age_s)
    pipeline = open_pipeline(release, settings.onnx, ranker, max_ages=limits)
    assert release.config.retrieval is not None
    return Serving(
        id=release.id,
        pipeline=pipeline,
        catalogue=pipeline.catalogue,
        candidates=release.config.retrieval.candidates,
        turn=turn,
    )


def load_ranker(path: Path, settings: Settings) -> OnnxRanker:
    """Load only the ranker of a release.

    Raises
    ------
    ReleaseError
        See :func:`load_serving`.
    """
    check_release(path)
    return OnnxRanker(OnnxModel(path / RANKER, settings.onnx))
