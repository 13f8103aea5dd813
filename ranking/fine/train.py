"""Training of the ranker: softmax over each list and "none of these" against what was taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from features.spec import names
from ranking.fine.examples import Examples
from ranking.fine.model import Ranker
from ranking.fine.probability import Calibration, calibration, probabilities
from ranking.optimiser import Optimiser
from ranking.passes import Pass, Passes
from ranking.training_config import FineConfig
from ranking.types import DoubleArray, FloatArray, Progress, RowArray

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
# Lists that are scored at a time when the ranker is measured.
_MEASURED = 256


def train_ranker(
    examples: Examples,
    vectors: FloatArray,
    config: FineConfig,
    seed: int,
    progress: Progress | None = None,
    *,
    device: str = "cpu",
    file: Path | None = None,
) -> tuple[Ranker, list[Pass], Calibration | None]:
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
        NDCG@10 is that of the lists that are kept for it.
    calibration : Calibration or None
        On the same lists; None without any.
    """
    torch.manual_seed(seed)
    model = Ranker(config.ranker, vectors.shape[1])
    if not examples.retrieved:
        return model.eval(), [], None
    learnt, kept = _kept(examples, config.check_share, seed)
    _measure(model, examples, vectors)
    model.to(device).train()
    total = config.epochs * -(-len(learnt) // config.batch_lists)
    optimiser = Optimiser(
        model, config.learning_rate, config.weight_decay, config.warmup_steps, total
    )
    passes = Passes("train: ranker", config.epochs, progress=progress, file=file)
    passes.resume(model, optimiser)
    while not passes.done:
        number = len(passes.curve)
        torch.manual_seed(seed + number)
        order = learnt[np.random.default_rng((seed, number)).permutation(len(learnt))]
        losses = torch.zeros((), device=device)
        for start in range(0, len(order), config.batch_lists):
            chosen = order[start : start + config.batch_lists]
            logits, _ = _logits(model, examples, chosen, vectors, device)
            targets = torch.from_numpy(examples.targets[chosen]).to(device)
            loss = nn.functional.cross_entropy(logits, targets)
            optimiser.step(loss)
            losses += len(chosen) * loss.detach()
            passes.step(optimiser.steps_done, total)
        likely = _probabilities(model, examples, kept, vectors, device)
        passes.end(
            model, optimiser, float(losses) / len(learnt), _ndcg(likely, examples.targets[kept])
        )
    likely = _probabilities(model, examples, kept, vectors, device)
    return (
        model.cpu().eval(),
        passes.curve,
        calibration(likely, examples.targets[kept]) if len(kept) else None,
    )


def _kept(examples: Examples, share: float, seed: int) -> tuple[RowArray, RowArray]:
    """Part the lists by user: those that are learnt from, and those that measure the ranker."""
    groups = np.unique(examples.groups)
    chosen = np.random.default_rng(seed).permutation(groups)[: int(share * len(groups))]
    kept = np.isin(examples.groups, chosen)
    return np.flatnonzero(~kept), np.flatnonzero(kept)


def _logits(
    model: Ranker, examples: Examples, chosen: RowArray, vectors: FloatArray, device: str
) -> tuple[Tensor, Tensor]:
    """Return logits (B, C + 1), the last for none of the candidates, and the mask (B, C)."""
    feeds = examples.batch(chosen, vectors)
    inputs = [torch.from_numpy(feeds[name]).to(device) for name in INPUTS]
    scores = model(*inputs) + _MASKED * (1 - inputs[-1])
    return nn.functional.pad(scores, (0, 1)), inputs[-1]


def _probabilities(
    model: Ranker, examples: Examples, chosen: RowArray, vectors: FloatArray, device: str
) -> DoubleArray:
    """Return the probabilities (E, C) of the lists `chosen`, by the model as it is now."""
    found = [np.empty((0, examples.rows.shape[1]))]
    model.eval()
    with torch.no_grad():
        for start in range(0, len(chosen), _MEASURED):
            part = chosen[start : start + _MEASURED]
            logits, mask = _logits(model, examples, part, vectors, device)
            found.append(probabilities(logits[:, :-1].cpu().numpy(), mask.cpu().numpy()))
    model.train()
    return np.concatenate(found)


def _ndcg(likely: DoubleArray, targets: FloatArray) -> float | None:
    """Return NDCG@10 of lists ordered by probability, ideal lists of all that was taken."""
    if not len(likely):
        return None
    best = np.argsort(-likely, axis=1, kind="stable")[:, :10]
    hits = np.take_along_axis(targets, best, axis=1) > 0
    discounts = 1 / np.log2(np.arange(10) + 2)
    # Each of m items taken has share 1/m; where none was retrieved there is nothing to order.
    shares = targets[:, :-1].max(axis=1)
    wanted = np.rint(np.divide(1, shares, out=np.ones(len(shares)), where=shares > 0))
    ideal = np.cumsum(discounts)[np.minimum(wanted, 10).astype(np.int64) - 1]
    return float((hits @ discounts[: hits.shape[1]] / ideal).mean())


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
    model.start(_level(model, examples))


def _level(model: Ranker, examples: Examples) -> float:
    """Return what makes the first scores say how often what was taken is in a list, on average."""
    place = len(names("cross")) + names("candidate").index("cand_ann_score")
    scores = examples.inputs["pair"][..., place] - float(model.pair_mean[place])
    scores = np.where(examples.inputs["mask"] > 0, scores.astype(np.float64), -np.inf)
    whole = np.logaddexp.reduce(scores, axis=1)
    listed = np.clip(1 - examples.targets[:, -1].mean(dtype=np.float64), 0.01, 0.99)
    return float(np.log(listed / (1 - listed)) - whole[np.isfinite(whole)].mean())
