"""Training of the ranker: softmax over each list, the label against the other candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from ranking.fine.examples import Examples
from ranking.fine.model import Ranker
from ranking.optimiser import Optimiser
from ranking.passes import Pass, Passes
from ranking.training_config import FineConfig
from ranking.types import FloatArray, Progress, RowArray

INPUTS = (
    "user",
    "item",
    "pair",
    "candidates",
    "history",
    "values",
    "log_gaps",
    "lengths",
    "mask",
)
"""Inputs of the ranker in the order of its forward."""

_MASKED = -1e9


def train_ranker(
    examples: Examples,
    vectors: FloatArray,
    config: FineConfig,
    seed: int,
    progress: Progress | None = None,
    *,
    device: str = "cpu",
    file: Path | None = None,
) -> tuple[Ranker, list[Pass]]:
    """Train the ranker.

    Parameters
    ----------
    examples : Examples
        May be empty: the ranker then repeats the coarse order.
    vectors : (N, d) float32
        Item vectors of the coarse stage that retrieved the examples.
    config : FineConfig
    seed : int
        With equal inputs and thread count, equal seeds give equal rankers.
    progress : callable, optional
    device : str
        ``cpu`` or ``cuda``.
    file : Path, optional
        Where the state is kept after each pass, and taken from.

    Returns
    -------
    model : Ranker
        In evaluation mode, on the CPU.
    curve : list of Pass
    """
    torch.manual_seed(seed)
    model = Ranker(config.ranker, vectors.shape[1])
    if not len(examples):
        return model.eval(), []
    _measure(model, examples, vectors)
    model.to(device).train()
    total = config.epochs * -(-len(examples) // config.batch_lists)
    optimiser = Optimiser(
        model, config.learning_rate, config.weight_decay, config.warmup_steps, total
    )
    passes = Passes("train: ranker", config.epochs, progress=progress, file=file)
    passes.resume(model, optimiser)
    while not passes.done:
        number = len(passes.curve)
        torch.manual_seed(seed + number)
        order = np.random.default_rng((seed, number)).permutation(len(examples))
        losses = torch.zeros((), device=device)
        for start in range(0, len(order), config.batch_lists):
            chosen = order[start : start + config.batch_lists]
            loss = _loss(model, examples, chosen, vectors, device)
            optimiser.step(loss)
            losses += len(chosen) * loss.detach()
            passes.step(optimiser.steps_done, total)
        passes.end(model, optimiser, float(losses) / len(examples))
    return model.cpu().eval(), passes.curve


def _loss(
    model: Ranker, examples: Examples, chosen: RowArray, vectors: FloatArray, device: str
) -> Tensor:
    feeds = examples.batch(chosen, vectors)
    inputs = [torch.from_numpy(feeds[name]).to(device) for name in INPUTS]
    logits = model(*inputs) + _MASKED * (1 - inputs[-1])
    labels = torch.from_numpy(examples.labels[chosen]).to(device)
    return nn.functional.cross_entropy(logits, labels)


def _measure(model: Ranker, examples: Examples, vectors: FloatArray) -> None:
    """Write mean and deviation of the features into the model."""
    real = examples.inputs["mask"] > 0
    columns = {
        "user": examples.inputs["user"],
        "item": examples.inputs["item"][real],
        "pair": examples.inputs["pair"][real],
    }
    with torch.no_grad():
        for name, values in columns.items():
            mean, std = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
            getattr(model, f"{name}_mean").copy_(torch.from_numpy(mean))
            # A feature that never varied says nothing, whatever it is at serving time.
            std[std < 1e-6] = 1e6
            getattr(model, f"{name}_std").copy_(torch.from_numpy(std))
        events = examples.inputs["values"][examples.history_rows >= 0]
        events = events[np.isfinite(events)]
        if len(events):
            model.value_mean.fill_(float(events.mean()))
            model.value_std.fill_(max(float(events.std()), 1e-3))
        model.vector_scale.fill_(1.0 / max(float(vectors.std()), 1e-6))
