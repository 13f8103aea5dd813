"""How old features may be when they are used; beyond that they take the defaults of the spec.

User and cross features have no limit: they are read with each request and hold at that moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.encode import encode_items
from features.spec import group, names
from ranking.types import DAY, BoolArray, DoubleArray, FloatArray, Freshness, Note, Ranking

_COVISITS = "cand_covisits"


@dataclass(frozen=True, slots=True)
class MaxAges:
    """Limits in seconds; no limit unless told.

    Attributes
    ----------
    item : float
        Of item features, counted from the refresh that they are of.
    candidate : float
        Of co-visitation counts, counted from the refresh that the release was built after.
    """

    item: float = inf
    candidate: float = inf


@dataclass(frozen=True, slots=True)
class Ages:
    """The feature groups of a batch: the moments they hold for, and who may not use them.

    Attributes
    ----------
    item_as_of, candidate_as_of : float
        Unix seconds, NaN where the features are those of any moment asked for.
    item_expired, candidate_expired : (B,) bool
        Whether the features are too old for each request.
    """

    item_as_of: float
    candidate_as_of: float
    item_expired: BoolArray
    candidate_expired: BoolArray

    @classmethod
    def of(
        cls, now: DoubleArray, item_as_of: float, candidate_as_of: float, limits: MaxAges
    ) -> Ages:
        """Return the ages at moments (B,); what has no moment never expires."""
        return cls(
            item_as_of,
            candidate_as_of,
            now - item_as_of > limits.item,
            now - candidate_as_of > limits.candidate,
        )

    def fresh_items(self, encoded: FloatArray) -> FloatArray:
        """Return item features (B, C, Fi) with the defaults where they expired."""
        if not self.item_expired.any():
            return encoded
        missing = np.full((1, len(names("item"))), np.nan, np.float32)
        return np.where(self.item_expired[:, None, None], encode_items(missing)[0], encoded)

    def fresh_pairs(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the ranker's inputs with the default co-visitation count where it expired."""
        if not self.candidate_expired.any():
            return inputs
        at = names("candidate").index(_COVISITS)
        pair = inputs["pair"].copy()
        pair[self.candidate_expired, :, len(names("cross")) + at] = group("candidate")[at].default
        return inputs | {"pair": pair}

    def describe(self, ranking: Ranking, b: int, now: float, limits: MaxAges, used: bool) -> None:
        """Say in an answer which moments its features hold for, and which were too old."""
        item, candidate = self.item_expired.item(b), self.candidate_expired.item(b)
        live = Freshness(now, False)
        ranking.freshness = {
            "user": live,
            "item": Freshness(self.item_as_of, item),
            "cross": live,
            "candidate": Freshness(self.candidate_as_of, candidate),
        }
        if not used or not (item or candidate):
            return
        for name, limit in (("item", limits.item), ("candidate", limits.candidate)):
            if ranking.freshness[name].expired:
                age = now - ranking.freshness[name].as_of
                ranking.expired.append(name)
                ranking.notes.append(Note("features_expired", expired_text(name, age, limit)))


def expired_text(name: str, age_s: float, limit_s: float) -> str:
    """Return what is wrong with a group that is too old, and what to do."""
    remedy = {
        "item": "run 'shortlist features refresh'",
        "candidate": "build a release",
    }[name]
    return (
        f"{name} features are {age_s / DAY:.3g} days old, at most {limit_s / DAY:.3g} are allowed"
        f" (features.{name}_max_age_s): their defaults are used; {remedy}"
    )


def sampled_positions(rows: NDArray[np.int64], returned: Sequence[int], most: int) -> list[int]:
    """Return places in a request's candidates: what was returned first, then the best others."""
    place = {row: at for at, row in enumerate(rows.tolist()) if row >= 0}
    first = [place[row] for row in returned if row in place][:most]
    taken = set(first)
    others = [at for at in place.values() if at not in taken]
    return first + others[: most - len(first)]
