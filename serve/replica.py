"""What runs in the replicas of Ray Serve, in both topologies.

``colocated``: :class:`Api` alone, with all stages. ``split``: :class:`Api` without the ranker,
which it asks over a handle, and :class:`FineRanker`, which joins what many replicas ask for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ranking.fine.ranker import OnnxRanker, RankerInputs
from ranking.types import FloatArray
from serve import logs
from serve.app import App
from serve.batcher import Batcher
from serve.config import Settings
from serve.engine import Engine
from serve.entrance import install
from serve.loading import load_ranker, load_serving
from serve.loopback import bind_to_loopback
from serve.remote import RankJob, RemoteRankers, join, part

# The release that serves, the one that is about to, and the one before.
_RANKERS = 3


class Api:
    """An API replica. Ray Serve builds its application and runs its lifespan.

    Parameters
    ----------
    settings : str
        As JSON.
    directory : str
        Of the running service; shared by its replicas.
    ranker : DeploymentHandle or None
        Of the fine ranker; None ranks in this process.
    """

    def __init__(self, settings: str, directory: str, ranker: Any = None) -> None:  # noqa: ANN401  # Ray has no types
        bind_to_loopback()
        self._settings = Settings.model_validate_json(settings)
        self._directory = Path(directory)
        self._ranker = ranker

    def __serve_build_asgi_app__(self) -> App:
        """Return the application; called by Ray Serve in the event loop of the replica."""
        settings = self._settings
        _log_to_file(settings, "api")
        if self._ranker is None:
            engine = Engine(settings, self._directory)
        else:
            rankers = RemoteRankers(self._ranker.score.remote, asyncio.get_running_loop())
            engine = Engine(
                settings,
                self._directory,
                load=lambda path: load_serving(path, settings, rankers.of_release),
                in_flight=settings.serve.batches_in_flight,
            )
        app = App(engine)
        install(app)
        return app


class FineRanker:
    """A replica that ranks for many: what arrives while it works becomes its next batch.

    Parameters
    ----------
    settings : str
        As JSON.
    """

    def __init__(self, settings: str) -> None:
        bind_to_loopback()
        self._settings = Settings.model_validate_json(settings)
        _log_to_file(self._settings, "ranker")
        config = self._settings.serve
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ranker")
        self._rankers: dict[str, OnnxRanker] = {}
        self._batcher: Batcher[RankJob, FloatArray] = Batcher(
            self._run,
            max_requests=config.max_batch_requests,
            max_rows=config.max_batch_rows,
            max_queued=config.max_queued_requests,
        )

    async def score(self, release: str, inputs: RankerInputs) -> FloatArray:
        """Return the scores (B, C) that the ranker of `release` gives."""
        rows = inputs["mask"].size
        return await self._batcher.submit(RankJob(release, inputs), rows=rows)

    async def _run(self, jobs: list[RankJob]) -> Sequence[FloatArray | Exception]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._rank, jobs)

    def _rank(self, jobs: list[RankJob]) -> list[FloatArray | Exception]:
        results: dict[int, FloatArray] = {}
        for release in dict.fromkeys(job.release for job in jobs):
            places = [place for place, job in enumerate(jobs) if job.release == release]
            inputs = [jobs[place].inputs for place in places]
            scores = self._ranker(release).score(join(inputs))
            for place, mine in zip(places, part(scores, inputs), strict=True):
                results[place] = mine
        return [results[place] for place in range(len(jobs))]

    def _ranker(self, release: str) -> OnnxRanker:
        if release not in self._rankers:
            self._rankers[release] = load_ranker(
                self._settings.home / "releases" / release, self._settings
            )
            while len(self._rankers) > _RANKERS:
                self._rankers.pop(next(iter(self._rankers)))
        return self._rankers[release]


def _log_to_file(settings: Settings, role: str) -> None:
    path = settings.home / "logs" / f"{role}-{os.getpid()}.jsonl"
    logs.setup(settings.serve.log_level, path)
