"""The feature spec: every number a model reads, declared once.

Training and serving take names, order, defaults and transforms from here, and the hash of
the spec is stored in every model, so that a model never reads columns in another order.
Adding a feature is one entry here and its column in SQL: see ``docs/features.md``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Literal

from features.settings import windows_days

Group = Literal["user", "item", "cross", "candidate"]
Transform = Literal["identity", "log1p"]


@dataclass(frozen=True, slots=True)
class Feature:
    """One model input.

    Attributes
    ----------
    name : str
        Unique name; for ``item`` also the column of the view ``item_features`` and of
        ``item_features_as_of``, for ``user`` of ``user_states`` and ``user_features_as_of``.
    group : {"user", "item", "cross", "candidate"}
        ``user``: one value a request, ``item``: one value an item, ``cross``: user and item
        together, ``candidate``: what retrieval knew of the pair.
    unit : str
        Unit of the raw value.
    source : str
        The SQL view or function it comes from, or the Python module that computes it.
    default : float
        Raw value used where the source has none.
    transform : {"identity", "log1p"}
        Applied to the raw value by :mod:`features.encode`.
    """

    name: str
    group: Group
    unit: str
    source: str
    default: float = 0.0
    transform: Transform = "identity"


WINDOWS_DAYS = windows_days()
"""Windows of the event counts, in days of 24 hours, ascending: ``features.windows_days``.

The refresh keeps a sum for each and the as-of functions count them; ``item_features`` and
``user_states`` have a column for each.
"""


def _user(name: str, unit: str, default: float = 0.0, transform: Transform = "identity") -> Feature:
    return Feature(name, "user", unit, "user_states", default, transform)


def _item(name: str, unit: str, default: float = 0.0, transform: Transform = "identity") -> Feature:
    return Feature(name, "item", unit, "item_features", default, transform)


def _candidate(name: str, unit: str, source: str = "ranking.fine.candidate_features") -> Feature:
    return Feature(name, "candidate", unit, source)


FEATURES: tuple[Feature, ...] = (
    _user("user_events", "events", transform="log1p"),
    *(_user(f"user_events_{days}d", "events", transform="log1p") for days in WINDOWS_DAYS),
    _user("user_value_mean", "value"),
    _user("user_value_std", "value"),
    _user("user_active_days", "days", transform="log1p"),
    _user("user_session_gap_days", "days", 365.0, "log1p"),
    _user("user_tenure_days", "days", transform="log1p"),
    _user("user_recency_days", "days", 3650.0, "log1p"),
    _item("item_events", "events", transform="log1p"),
    *(_item(f"item_events_{days}d", "events", transform="log1p") for days in WINDOWS_DAYS),
    *(_item(f"item_trend_{days}d", "log ratio") for days in WINDOWS_DAYS[:-1]),
    _item("item_value_mean", "value"),
    _item("item_value_std", "value"),
    _item("item_age_days", "days", 3650.0, "log1p"),
    _item("item_recency_days", "days", 3650.0, "log1p"),
    _item("item_click_rate", "clicks an impression"),
    Feature("cross_category_share", "cross", "share", "features.encode"),
    Feature("cross_category_value", "cross", "value", "features.encode"),
    _candidate("cand_ann_score", "inner product"),
    _candidate("cand_ann_gap", "inner product below the best"),
    _candidate("cand_ann_log_rank", "log(1 + rank)"),
    _candidate("cand_coarse_log_rank", "log(1 + rank)"),
    _candidate("cand_item_to_item_score", "log(1 + score)"),
    _candidate("cand_item_to_item_log_rank", "log(1 + rank)"),
    _candidate("cand_trending_log_rank", "log(1 + rank)"),
    _candidate("cand_is_new", "flag"),
    _candidate("cand_covisits", "log(1 + pairs)", "item_covisits"),
    _candidate("cand_transition_1", "log(1 + score)"),
    _candidate("cand_transition_5", "log(1 + score)"),
    _candidate("cand_transition_20", "log(1 + score)"),
    _candidate("cand_ease", "log(1 + score)"),
    _candidate("cand_ease_20", "log(1 + score)"),
    _candidate("cand_ease_log_rank", "log(1 + rank)"),
    _candidate("cand_similarity_1", "cosine"),
    _candidate("cand_similarity_max", "cosine"),
    _candidate("cand_similarity_mean", "cosine"),
    _candidate("cand_category_overlap", "cosine"),
)


def names(group: Group) -> tuple[str, ...]:
    """Return the feature names of `group` in model order."""
    return tuple(feature.name for feature in FEATURES if feature.group == group)


def group(name: Group) -> tuple[Feature, ...]:
    """Return the features of one group in model order."""
    return tuple(feature for feature in FEATURES if feature.group == name)


def spec_hash() -> str:
    """Return the sha256 (hex) of the whole spec: order, defaults and transforms included."""
    text = json.dumps([asdict(feature) for feature in FEATURES], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
