"""The release in service: found, loaded, warmed up, swapped and kept up to date.

A new release is loaded beside the one that serves. Only when it has answered warm-up requests
well does it take over, between two batches; one that fails is refused, with its reason, and the
old one stays. A batch keeps the release that it began with.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from features.errors import DatabaseUnavailable, ReleaseError, ShortlistError
from features.items import Pool, changed_items, refreshed_at
from features.states import cold_state
from features.store import item_features_async
from ranking.catalogue import LiveCatalogue
from ranking.pipeline import Pipeline
from ranking.release import current_release, list_releases
from ranking.types import HistoryEvent, Query, Ranking
from serve.config import Settings
from serve.logs import NAME
from serve.metrics import Metrics
from serve.moments import rfc3339
from serve.schemas import Check, FeatureAge

_LOGGER = logging.getLogger(NAME)

# Batch sizes of the warm-up: one request, and a full batch of them.
_WARM_BATCHES = (1, 8, 64, 1)
_WARM_HISTORY = 20


@dataclass(frozen=True, slots=True)
class Serving:
    """A loaded release.

    Attributes
    ----------
    id : str
        Of the release.
    pipeline : Pipeline
        For one thread at a time: the one that holds `turn`.
    catalogue : LiveCatalogue
        The pipeline's.
    candidates : int
        Rows that a request usually ranks.
    turn : Lock
    """

    id: str
    pipeline: Pipeline
    catalogue: LiveCatalogue
    candidates: int
    turn: threading.Lock

    def feature_ages(self) -> list[FeatureAge]:
        """Return how old the groups are that are not read with each request."""
        now = time.time()
        limits = self.pipeline.max_ages
        return [
            _age("item", self.catalogue.items.features_as_of, limits.item, now),
            _age("candidate", self.catalogue.release_as_of, limits.candidate, now),
        ]


Load = Callable[[Path], Serving]


class ReleaseHolder:
    """Holds the release in service and follows what is promoted and what changes.

    Parameters
    ----------
    settings : Settings
    metrics : Metrics
    load : callable
        Makes a :class:`Serving` of a release directory.
    """

    def __init__(self, settings: Settings, metrics: Metrics, load: Load) -> None:
        self._home = settings.home
        # Only where answers are sampled: twice the memory of the item features.
        self._keep_raw = settings.features.served_sample_rate > 0
        self._metrics = metrics
        self._load = load
        self._pool: Pool | None = None
        self._threads: ThreadPoolExecutor | None = None
        # The release that was taken or refused last, and one that waits for the database.
        self._settled: str | None = None
        self._loaded: Serving | None = None
        self._applying = asyncio.Lock()
        self.serving: Serving | None = None
        self.refused: dict[str, str] = {}

    async def open(self, pool: Pool, threads: ThreadPoolExecutor) -> None:
        """Load the promoted release, if there is one."""
        self._pool, self._threads = pool, threads
        try:
            await self.follow_releases()
        except DatabaseUnavailable as error:
            _LOGGER.warning("the release waits for the database: %s", error)

    async def follow_catalogue(self) -> None:
        """Lay items that changed, and refreshed features, over the release in service."""
        if self.serving is not None:
            await self._catch_up(self.serving)

    def on_disk(self) -> tuple[str | None, list[str]]:
        """Return the promoted release, and all of them, newest first."""
        return current_release(self._home), list_releases(self._home)

    def check(self) -> Check:
        """Say whether a release is in service."""
        if self.serving is not None:
            return Check("release", True, f"{self.serving.id} is loaded and warm")
        promoted = current_release(self._home)
        if promoted is None:
            return Check(
                "release",
                False,
                f"no release is promoted in {self._home / 'releases'}; "
                "run 'shortlist release build'",
            )
        return Check("release", False, self.refused.get(promoted, f"{promoted} is being loaded"))

    async def follow_releases(self) -> None:
        """Take a newly promoted release into service, or refuse it.

        Raises
        ------
        DatabaseUnavailable
            The release is good but cannot be brought up to date now; call again.
        """
        promoted = current_release(self._home)
        if promoted is None or promoted == self._settled:
            return
        if self.serving is not None and self.serving.id == promoted:
            self._settled = promoted
            return
        started = time.perf_counter()
        try:
            if self._loaded is None or self._loaded.id != promoted:
                path = self._home / "releases" / promoted
                self._loaded = await asyncio.to_thread(self._load_warm, path)
            await self._catch_up(self._loaded)
        except DatabaseUnavailable:
            raise
        except Exception as error:
            # Not tried again until another one was promoted.
            self._settled, self._loaded = promoted, None
            reason = str(error) if isinstance(error, ShortlistError) else repr(error)
            self.refused[promoted] = reason
            self._metrics.count("shortlist_release_swaps", "refused")
            kept = self.serving.id if self.serving else "none"
            _LOGGER.error(
                "release %s is refused, %s stays: %s",
                promoted,
                kept,
                reason,
                extra={"release": promoted},
                exc_info=None if isinstance(error, ShortlistError) else error,
            )
            return
        self.refused.pop(promoted, None)
        self._settled = promoted
        self.serving, self._loaded = self._loaded, None
        self._metrics.count("shortlist_release_swaps", "taken")
        self._metrics.gauge("shortlist_release_info", 1, promoted)
        _LOGGER.info(
            "release %s serves after %.1f s",
            promoted,
            time.perf_counter() - started,
            extra={"release": promoted},
        )

    def _load_warm(self, path: Path) -> Serving:
        serving = self._load(path)
        warm_up(serving)
        return serving

    async def _catch_up(self, serving: Serving) -> None:
        """Lay over `serving` what changed since its watermark."""
        assert self._pool is not None
        assert self._threads is not None
        async with self._applying:  # the catalogue takes one writer
            changed = await changed_items(self._pool, serving.catalogue.watermark)
            if len(changed.item_keys):
                await asyncio.get_running_loop().run_in_executor(
                    self._threads, serving.catalogue.apply, changed
                )
                self._metrics.count("shortlist_catalogue_changes", by=len(changed.item_keys))
            await self._follow_refresh(self._pool, serving.catalogue)

    async def _follow_refresh(self, pool: Pool, catalogue: LiveCatalogue) -> None:
        """Take the item features of the last refresh, if it is not the one in service."""
        has_raw = catalogue.items.raw_features is not None
        if await refreshed_at(pool) == catalogue.items.features_as_of and (
            has_raw or not self._keep_raw
        ):
            return
        fresh = await item_features_async(pool)
        # In a thread of its own: requests go on with the features before.
        await asyncio.to_thread(catalogue.take_features, fresh, self._keep_raw)
        self._metrics.count("shortlist_feature_refreshes")


def _age(
    group: Literal["item", "candidate"], as_of: float, limit_s: float, now: float
) -> FeatureAge:
    if math.isnan(as_of):
        return FeatureAge(group, None, None, limit_s, False)
    age = now - as_of
    return FeatureAge(group, rfc3339(as_of), round(age, 3), limit_s, age > limit_s)


def warm_up(serving: Serving) -> None:
    """Answer requests with histories of the release's own items, and check the answers.

    Raises
    ------
    ReleaseError
        A score is not a number, or items are missing.
    """
    now = time.time()
    catalogue = serving.catalogue
    N = len(catalogue.items)
    for size in _WARM_BATCHES:
        queries = []
        for place in range(size):
            rows = (
                [(place * 7919 + step * 104_729) % N for step in range(_WARM_HISTORY)] if N else []
            )
            events = tuple(HistoryEvent(catalogue.id(row), None, now - 60) for row in rows)
            queries.append(Query(f"warm-up {place}", 10, now, history=events))
        states = [cold_state(query.user_id, now) for query in queries]
        with serving.turn:
            rankings = serving.pipeline.recommend(queries, states)
        for ranking in rankings:
            _check(serving.id, ranking)


def _check(release: str, ranking: Ranking) -> None:
    bad = [item.item_id for item in ranking.items if not math.isfinite(item.score)]
    if bad:
        raise ReleaseError(
            f"release {release}: the score of {bad[0]!r} is not finite in the warm-up; "
            "train and build it again"
        )
    if not ranking.items and ranking.counts.get("ranked", 0):
        raise ReleaseError(f"release {release}: the warm-up ranked items but returned none")
