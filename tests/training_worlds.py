"""A small log to train on, and the process that a test kills while it trains."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

from ranking.passes import Pass
from ranking.processes import Hardware
from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import EventLog
from ranking.retrieval.train import train_towers
from ranking.retrieval.validation import last_events
from ranking.training_config import CoarseConfig, TowerConfig

ITEMS = 40


def walks(users: int = 60, length: int = 12, seed: int = 0) -> EventLog:
    """Users who walk through the catalogue in order: the next row is always row + 1."""
    starts = np.random.default_rng(seed).integers(0, ITEMS, users)
    rows = ((starts[:, None] + np.arange(length)) % ITEMS).ravel()
    n = len(rows)
    return EventLog(
        rows=rows,
        values=np.full(n, 3.0, np.float32),
        times=np.tile(np.arange(length) * 60.0, users),
        offsets=np.arange(users + 1) * length,
        positions=np.arange(n),
        items=ITEMS,
    )


def attributes() -> np.ndarray:
    return np.eye(4, dtype=np.float32)[np.arange(ITEMS) % 4]


def learn(
    file: Path | None = None, on: Hardware | None = None, progress=None, **changes: object
) -> tuple[TwoTower, list[Pass]]:
    """Train on all but the held events; these validate."""
    torch.set_num_threads(1)
    log = walks()
    held = log.before_end() < 3
    config = CoarseConfig(
        tower=TowerConfig(width=8, dropout=changes.pop("dropout", 0.1), id_dropout=0.0),
        **{"epochs": 4, "batch_events": 128, "learning_rate": 0.01} | changes,
    )
    return train_towers(
        log.select(~held),
        attributes(),
        config,
        seed=3,
        progress=progress,
        validation=last_events(log, held, 1000, 3),
        on=on or Hardware(),
        file=file,
    )


def weights(model: TwoTower) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.state_dict().items()}


def stall_in_pass_three(step: str, done: int, total: int, detail: str = "") -> None:
    """Say so and wait to be killed."""
    if detail.startswith("pass 3/"):
        print("in pass three", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    learn(
        Path(sys.argv[1]),
        Hardware("cpu", int(sys.argv[2])),
        stall_in_pass_three,
    )
