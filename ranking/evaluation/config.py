"""What evaluation reads of the settings; apart from the code, so that a service needs no scipy."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class EvaluationConfig(BaseModel):
    """How an evaluation is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_folder: Path = Field(
        default=Path("data"),
        description="Where `shortlist evaluate --data NAME` looks for a folder or file NAME.",
    )
    seed: int = Field(default=0, ge=0, description="Seed of resamples and of drawn users.")
    resamples: int = Field(default=1000, ge=1, description="Bootstrap resamples.")
    confidence: float = Field(default=0.95, gt=0, lt=1, description="Share inside an interval.")
    most_users: int = Field(default=20_000, ge=1, description="Test users; more are drawn from.")
    batch: int = Field(
        default=1024,
        ge=1,
        description="Users a batch of the pipeline; each reads the events of its candidates once.",
    )
    most_ease: int = Field(
        default=20_000, ge=0, description="EASE is left out above so many users and items."
    )
    test_share: float = Field(
        default=0.1, gt=0, lt=1, description="Share of the events in the window of a time split."
    )
    hide_request_time: bool = Field(
        default=False,
        description="Leave-last-out: requests come the median gap of training after the previous "
        "event, not at the moment of the held-out one.",
    )
    latency_requests: int = Field(default=200, ge=0, description="Single requests timed.")
    examples: int = Field(default=6, ge=0, description="Users shown in the report.")
