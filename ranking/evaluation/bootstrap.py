"""Bootstrap intervals over users.

Percentile intervals (Efron 1979) of the mean, users drawn with replacement. The resamples are
written as counts, so that one matrix product serves every metric of every model at once, and
the same resamples pair two models: a difference has the interval of the per-user differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from ranking.types import DoubleArray

Number = Annotated[float, BeforeValidator(lambda value: float("nan") if value is None else value)]
"""A float whose NaN is written to JSON as null and read back as NaN."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over users with its interval; NaN throughout when no user has a value."""

    mean: Number
    low: Number
    high: Number


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Draws the resamples.

    Attributes
    ----------
    resamples : int
        Number of resamples.
    confidence : float
        Share of resampled means inside the interval.
    seed : int
        Seed of the draws: equal seeds and sizes give equal intervals.
    """

    resamples: int = 1000
    confidence: float = 0.95
    seed: int = 0

    def estimates(self, values: DoubleArray) -> list[Estimate]:
        """Return one estimate for each column of `values` (U, M), which holds no NaN."""
        users, columns = values.shape
        if users == 0:
            return [Estimate(float("nan"), float("nan"), float("nan"))] * columns
        rng = np.random.default_rng(self.seed)
        means = np.empty((self.resamples, columns))
        # At most 4 million draws live at once: a million users need no more memory than this.
        step = max(1, 4_000_000 // users)
        for start in range(0, self.resamples, step):
            size = min(step, self.resamples - start)
            drawn = rng.integers(0, users, size=(size, users))
            drawn += np.arange(size)[:, None] * users
            counts = np.bincount(drawn.ravel(), minlength=size * users).reshape(size, users)
            means[start : start + size] = counts @ values / users
        tail = (1.0 - self.confidence) / 2
        low, high = np.quantile(means, [tail, 1.0 - tail], axis=0)
        return [
            Estimate(float(m), float(a), float(b))
            for m, a, b in zip(values.mean(axis=0), low, high, strict=True)
        ]

    def estimate(self, values: DoubleArray) -> Estimate:
        """Return the estimate of one metric (U,); users whose value is NaN are left out."""
        return self.estimates(values[~np.isnan(values)][:, None])[0]

    def difference(self, left: DoubleArray, right: DoubleArray) -> Estimate:
        """Return the paired estimate of ``mean(left - right)`` over the same users (U,)."""
        return self.estimate(left - right)
