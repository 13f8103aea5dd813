"""What an evaluation found: the schema of its JSON file and the input of its report.

Keys are added, never renamed or removed, within one `schema_version`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ranking.evaluation.bootstrap import Estimate, Number
from ranking.protocols import ProtocolName

CURVE = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""List lengths at which recall is reported; the last is the number of candidates."""


SliceKind = Literal["history", "training_events", "users", "items"]
"""``history``: length of the user's; ``training_events``: of the test item; ``users`` and
``items``: the same as cold (under 5) and warm."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Percentiles(_Part):
    """Latency in milliseconds over single-query calls."""

    p50: Number
    p95: Number
    p99: Number


class ModelFigures(_Part):
    """One ranking beside the others."""

    label: str = Field(description="Name for people")
    stage: Literal["baseline", "cascade"]
    settings: str = Field(description="What the model is and how it was tuned")
    metrics: dict[str, Estimate] = Field(
        description="ndcg_at_10, hr_at_10, hr_at_50, mrr, recall_at_K for K in CURVE, "
        "novelty_at_10 (bits), diversity_at_10 (1 - mean pairwise cosine)"
    )
    coverage_at_10: float = Field(description="Share of the catalogue in some user's first 10")


class Difference(_Part):
    """Paired difference of two models over the same users."""

    metric: str
    model: str
    other: str
    estimate: Estimate = Field(description="mean(model - other) with its interval")
    relative: Number = Field(description="estimate.mean / mean of other")


class Slice(_Part):
    """Figures on a part of the users, or on a part of the test items."""

    kind: SliceKind
    label: str = Field(description="A range of numbers, or cold and warm: under 5, and 5 or more")
    users: int = Field(description="Users with at least one test item in the slice")
    metrics: dict[str, dict[str, Estimate]] = Field(description="model -> metric -> estimate")


class AnnRecall(_Part):
    """The release's index against exact search over the same vectors and queries."""

    k: int
    recall: Number
    index: str
    queries: int


class ExampleItem(_Part):
    """One recommended item of an example."""

    title: str
    score: float
    sources: list[str]
    hit: bool = Field(description="Whether the user chose it in the held-out events")


class Example(_Part):
    """A user's latest items, what was held out, and what the release recommends."""

    user_id: str
    history: list[str] = Field(description="Titles, newest first")
    held_out: list[str]
    places: list[int] = Field(description="1-based places of held-out items in the fine order")
    recommended: list[ExampleItem]


class EvaluationResult(_Part):
    """Everything that one evaluation measured."""

    schema_version: Literal[1] = 1
    created: str = Field(description="UTC, ISO 8601")
    release: str
    protocol: ProtocolName
    seed: int
    resamples: int
    confidence: float

    users: int = Field(description="Users with at least one event")
    items: int = Field(description="Items of the release")
    interactions: int
    training_events: int
    test_users: int
    test_events: int
    skipped: dict[str, int] = Field(description="Users left out, by reason")
    cut: float | None = Field(description="Unix seconds of the time split")
    request_gap_s: float | None = Field(
        default=None,
        description="Seconds after the previous event at which requests were put; null: at the "
        "moment of the held-out event, or at the cut",
    )

    coarse_recall_at_200: float
    ann_recall_at_200: float = Field(description="Index against exact search, not test items")
    ndcg_at_10: dict[str, float]
    hr_at_10: dict[str, float]

    models: dict[str, ModelFigures]
    differences: list[Difference]
    slices: list[Slice]
    ann: AnnRecall
    sources: dict[str, float] = Field(
        description="Share of test items that each source alone brought among its candidates"
    )
    timing_ms: dict[str, Percentiles]
    total_ms: Percentiles
    latency_queries: int
    examples: list[Example]
    seconds: dict[str, float] = Field(description="Wall time of the steps of the evaluation")
    machine: str
