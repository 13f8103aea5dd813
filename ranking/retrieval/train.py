"""Training of the coarse stage: next-item prediction at every position of every history."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ranking.optimiser import Optimiser
from ranking.passes import Pass, Passes
from ranking.processes import Group, Hardware, run
from ranking.retrieval.batches import Batch, batches, collate, windows_of
from ranking.retrieval.initial import attribute_map, initial_vectors
from ranking.retrieval.loss import Seen, full_softmax, sampled_softmax
from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import EventLog
from ranking.retrieval.validation import Validation
from ranking.training_config import CoarseConfig
from ranking.types import FloatArray, Progress

# Steps between two looks at the loss: on a GPU each one waits for the work that is queued.
_STEPS_A_LOOK = 8


@dataclass(frozen=True, slots=True)
class _Job:
    """All that a process needs to train; arrays only, as it goes to other processes."""

    log: EventLog
    attributes: FloatArray
    config: CoarseConfig
    seed: int
    weights: dict[str, NDArray[Any]]
    validation: Validation | None
    file: Path | None


def train_towers(
    log: EventLog,
    attributes: FloatArray,
    config: CoarseConfig,
    seed: int,
    start: TwoTower | None = None,
    progress: Progress | None = None,
    *,
    validation: Validation | None = None,
    on: Hardware = Hardware(),  # noqa: B008  # frozen
    file: Path | None = None,
) -> tuple[TwoTower, list[Pass]]:
    """Train both towers.

    Parameters
    ----------
    log : EventLog
        Training events, at least one.
    attributes : (N, Fa) float32
        See :mod:`ranking.retrieval.attributes`.
    config : CoarseConfig
    seed : int
        With equal inputs, processes and thread count, equal seeds give equal towers.
    start : TwoTower, optional
        Begin with the weights of this one.
    progress : callable, optional
    validation : Validation, optional
        Events that are not in `log`; measured after each pass.
    on : Hardware
    file : Path, optional
        Where the state is kept after each pass, and taken from.

    Returns
    -------
    model : TwoTower
        In evaluation mode, on the CPU.
    curve : list of Pass

    Raises
    ------
    TrainingError
        One of several processes failed.
    """
    torch.manual_seed(seed)
    model = start or _new_model(log, attributes, config, seed)
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    job = _Job(log, attributes, config, seed, weights, validation, file)
    learnt, curve = run(_descend, job, on, progress)
    trained = TwoTower(config.tower, torch.from_numpy(attributes))
    trained.load_state_dict({name: torch.from_numpy(value) for name, value in learnt.items()})
    return trained.eval(), curve


def _descend(
    job: _Job, group: Group, progress: Progress | None
) -> tuple[dict[str, NDArray[Any]], list[Pass]]:
    """Run the passes in one process of the group; return weights and curve."""
    config = job.config
    model = TwoTower(config.tower, torch.from_numpy(job.attributes))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in job.weights.items()})
    model.to(group.device).train()
    windows = windows_of(job.log)

    def order(number: int) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng((job.seed, number))
        return list(batches(windows, config.batch_events, rng))

    total = config.epochs * len(order(0))
    optimiser = Optimiser(
        model,
        config.learning_rate,
        config.weight_decay,
        config.warmup_steps,
        total,
        betas=(0.9, 0.98),
        combine=group.add if group.size > 1 else None,
    )
    passes = Passes(
        "train: towers", config.epochs, config.patience, progress, job.file, group.rank == 0
    )
    passes.resume(model, optimiser)
    rows = torch.from_numpy(job.log.rows).to(group.device)
    proposal = torch.from_numpy(_proposal(job.log)).to(group.device)
    while not passes.done:
        number = len(passes.curve)
        torch.manual_seed(_pass_seed(job.seed, number, group.rank))
        losses, events, shown = torch.zeros((), device=group.device), 0, None
        for chosen in order(number):
            if optimiser.steps_done >= total:
                break
            targets = windows.targets(chosen)
            mine = chosen[group.rank :: group.size]
            loss = None
            if len(mine):
                batch = collate(job.log, windows, mine, group.device)
                # The mean over the whole batch, as far as this process has its events.
                share = len(batch.targets) / targets
                loss = share * _loss(model, batch, config, rows, proposal)
                losses += targets * loss.detach()
            optimiser.step(loss)
            events += targets
            if progress is not None and optimiser.steps_done % _STEPS_A_LOOK == 0:
                shown = float(losses) * group.size / events
            passes.step(optimiser.steps_done, total, shown)
        ndcg = job.validation.ndcg(model) if job.validation and group.rank == 0 else None
        mean = float(group.total(losses)) / max(events, 1)
        passes.end(model, optimiser, mean, group.first(ndcg))
    passes.take_best(model)
    state = model.cpu().state_dict()
    return {name: value.numpy() for name, value in state.items()}, passes.curve


def _pass_seed(seed: int, number: int, rank: int) -> int:
    """Return a seed of torch for one pass in one process."""
    return int(np.random.SeedSequence((seed, number, rank)).generate_state(1, np.uint64)[0])


def _new_model(log: EventLog, attributes: FloatArray, config: CoarseConfig, seed: int) -> TwoTower:
    model = TwoTower(config.tower, torch.from_numpy(attributes))
    vectors = initial_vectors(log, config.tower.width, config.initial_scale, seed)
    counts = log.counts()
    mapped = attribute_map(vectors, attributes, counts)
    values = log.values[np.isfinite(log.values)]
    with torch.no_grad():
        model.items.map.weight.copy_(torch.from_numpy(mapped))
        rest = (vectors - attributes @ mapped.T) * (counts > 0)[:, None]
        model.ids.copy_(torch.from_numpy(rest.astype(np.float32)))
        if len(values):
            model.users.value_mean.fill_(float(values.mean()))
            model.users.value_std.fill_(max(float(values.std()), 1e-3))
    return model


def _proposal(log: EventLog) -> FloatArray:
    weights = (log.counts() + 1.0) ** 0.75
    proposal: FloatArray = (weights / weights.sum()).astype(np.float32)
    return proposal


def _loss(
    model: TwoTower, batch: Batch, config: CoarseConfig, rows: Tensor, proposal: Tensor
) -> Tensor:
    items = model.item_vectors()
    history = nn.functional.embedding(batch.rows, items)
    users = model.users.every_position(history, batch.values, batch.gaps)[batch.known]
    if len(items) <= config.full_softmax_items:
        seen = Seen(rows, batch.starts, batch.stops) if config.spare_seen else None
        return full_softmax(users, items, batch.targets, seen)
    return sampled_softmax(users, items, batch.targets, proposal, config.negatives)
