"""What training reads of the settings; apart from the code, so that a service needs no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ranking.retrieval.covisitation import CovisitationConfig
from ranking.retrieval.ease import EaseConfig
from ranking.retrieval.retriever import RetrievalConfig


class TowerConfig(BaseModel):
    """Sizes of the two towers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    width: int = Field(default=64, ge=4, description="Length d of user and item vectors.")
    layers: int = Field(default=2, ge=1, description="Transformer layers of the user tower.")
    heads: int = Field(default=2, ge=1, description="Attention heads; divides the width.")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout between layers.")
    id_dropout: float = Field(
        default=0.1, ge=0, lt=1, description="Share of items that train on attributes alone."
    )


class CoarseConfig(BaseModel):
    """How the two towers are trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tower: TowerConfig = Field(default=TowerConfig(), description="Sizes of the towers.")
    epochs: int = Field(default=3, ge=1, description="Passes over the training events.")
    patience: int = Field(
        default=0,
        ge=0,
        description="Passes without a better validation figure after which the towers stop and "
        "take the best pass; 0 runs all passes and takes the last.",
    )
    validation_users: int = Field(
        default=1000,
        ge=0,
        description="Users whose last event of the ranker's labels measures the towers after each "
        "pass; 0: none.",
    )
    learning_rate: float = Field(default=4e-3, gt=0, description="Peak rate of AdamW.")
    weight_decay: float = Field(default=0.01, ge=0, description="Decay of AdamW.")
    batch_events: int = Field(
        default=2500, ge=1, description="Events in a batch, padding included."
    )
    warmup_steps: int = Field(default=20, ge=0, description="Steps of linear warm-up.")
    initial_scale: float = Field(
        default=0.06, gt=0, description="Standard deviation of the entries of start vectors."
    )
    full_softmax_items: int = Field(
        default=30_000,
        ge=0,
        description="Items up to which the loss runs over the whole catalogue; a larger one is "
        "sampled.",
    )
    negatives: int = Field(default=4096, ge=1, description="Sampled negatives a step.")
    spare_seen: bool = Field(
        default=True,
        description="Whether what a user has had is no negative of later events, as lists leave "
        "it out; softmax over the whole catalogue only.",
    )


class RankerConfig(BaseModel):
    """Sizes of the ranker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attention_width: int = Field(default=16, ge=1, description="Width of the target attention.")
    hidden: int = Field(default=64, ge=1, description="Width of the hidden layer.")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="Dropout before the hidden layer.")


class FineConfig(BaseModel):
    """How the ranker is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ranker: RankerConfig = Field(default=RankerConfig(), description="Sizes of the ranker.")
    labels: Literal["next", "window"] = Field(
        default="next",
        description="What the ranker puts first: 'next' = a user's next item, as of each of the "
        "latest events; 'window' = all that users took from one moment on, as of that moment.",
    )
    window_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description="Share of the training events in the window, the latest; with labels 'window'.",
    )
    label_events: int = Field(
        default=6, ge=1, description="Latest training events of each user that become labels."
    )
    label_share: float = Field(
        default=0.25, gt=0, lt=1, description="At most this share of a user's events."
    )
    most_labels: int = Field(
        default=4000, ge=1, description="Labels in all; the latest of each user come first."
    )
    check_share: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the users whose lists are not learnt from: they measure NDCG@10 and "
        "calibration.",
    )
    candidates: int = Field(default=100, ge=2, description="Candidates of each list.")
    epochs: int = Field(default=6, ge=1, description="Passes over the lists.")
    batch_lists: int = Field(default=64, ge=1, description="Lists in a batch.")
    learning_rate: float = Field(default=2e-3, gt=0, description="Peak rate of AdamW.")
    weight_decay: float = Field(default=0.05, ge=0, description="Decay of AdamW.")
    warmup_steps: int = Field(default=30, ge=0, description="Steps of linear warm-up.")


class TrainingConfig(BaseModel):
    """What is trained on which events."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    holdout: Literal["last", "none"] | float = Field(
        default="last",
        description="Events kept from training: 'last' = each user's last, 'none', or all from "
        "a moment on (unix seconds).",
    )
    seed: int = Field(default=7, ge=0, description="Equal seeds give equal models.")
    threads: int = Field(
        default=1,
        ge=1,
        description="CPU threads of torch; more wait for each other where cores are not idle.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="What torch trains on; auto: a GPU where there is one."
    )
    processes: int = Field(
        default=1,
        ge=1,
        description="Processes that train the towers together, each with its own threads or GPU.",
    )
    coarse: CoarseConfig = Field(default=CoarseConfig(), description="The two towers.")
    further_epochs: int = Field(
        default=2, ge=0, description="Passes over all events after the ranker's labels were made."
    )
    covisitation: CovisitationConfig = Field(
        default=CovisitationConfig(), description="Item-to-item neighbours."
    )
    ease: EaseConfig = Field(default=EaseConfig(), description="EASE over whole histories.")
    trending_half_life_days: float = Field(
        default=365.0, gt=0, description="Days after which an event counts half as popularity."
    )
    trending_items: int = Field(default=1000, ge=1, description="Items in the trending list.")
    fine: FineConfig = Field(default=FineConfig(), description="The ranker.")
    retrieval: RetrievalConfig = Field(
        default=RetrievalConfig(),
        description="How candidates are found, for the ranker's lists and in the release.",
    )
    parity_tolerance: float = Field(
        default=1e-3,
        gt=0,
        description="Largest difference between torch and ONNX Runtime, in standard deviations "
        "of the output.",
    )
