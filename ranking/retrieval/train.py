"""Training of the coarse stage: next-item prediction at every position of every history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ranking.optimiser import Optimiser
from ranking.retrieval.initial import attribute_map, initial_vectors
from ranking.retrieval.loss import full_softmax, sampled_softmax
from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import TOWER_EVENTS, EventLog, log_gaps
from ranking.training_config import CoarseConfig
from ranking.types import FloatArray, Progress

# Windows of about the same length share a batch; the jitter changes who meets whom.
_LENGTH_JITTER = 8.0


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows of at most ``TOWER_EVENTS`` + 1 events: each predicts its events from those before.

    ``starts`` and ``stops`` are positions in the log; the first event of a window is predicted
    from the start token only where the user's history begins there.
    """

    starts: np.ndarray
    stops: np.ndarray
    first: np.ndarray


def train_towers(
    log: EventLog,
    attributes: FloatArray,
    config: CoarseConfig,
    seed: int,
    start: TwoTower | None = None,
    progress: Progress | None = None,
) -> TwoTower:
    """Train both towers.

    Parameters
    ----------
    log : EventLog
        Training events, at least one.
    attributes : (N, Fa) float32
        See :mod:`ranking.retrieval.attributes`.
    config : CoarseConfig
    seed : int
        With equal inputs and thread count, equal seeds give equal towers.
    start : TwoTower, optional
        Train this one further, in place, instead of a new one.
    progress : callable, optional

    Returns
    -------
    TwoTower
        In evaluation mode.
    """
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    model = start or _new_model(log, attributes, config, seed)
    model.train()
    windows = _windows(log)
    batches = list(_batches(windows, config.batch_events, rng))
    total = config.epochs * len(batches)
    optimiser = Optimiser(
        model,
        config.learning_rate,
        config.weight_decay,
        config.warmup_steps,
        total,
        betas=(0.9, 0.98),
    )
    proposal = torch.from_numpy(_proposal(log))
    step = 0
    for epoch in range(config.epochs):
        for batch in batches if epoch == 0 else _batches(windows, config.batch_events, rng):
            if step >= total:
                break
            optimiser.step(_loss(model, _collate(log, windows, batch), config, proposal))
            step += 1
            if progress:
                progress("train: towers", step, total)
    return model.eval()


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


def _windows(log: EventLog) -> _Windows:
    """Cut each history from its end, so that the latest events stand in a full window."""
    length = TOWER_EVENTS + 1
    starts, stops, first = [], [], []
    for begin, end in zip(log.offsets[:-1].tolist(), log.offsets[1:].tolist(), strict=True):
        for stop in range(end, begin, -length):
            starts.append(max(begin, stop - length))
            stops.append(stop)
            first.append(starts[-1] == begin)
    return _Windows(np.array(starts), np.array(stops), np.array(first))


def _batches(windows: _Windows, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Yield window indices, batch by batch, in random order; lengths are alike in a batch."""
    lengths = windows.stops - windows.starts
    order = np.argsort(lengths + rng.uniform(0, _LENGTH_JITTER, len(lengths)), kind="stable")
    found: list[list[int]] = [[]]
    longest = 0
    for window in order.tolist():
        longest = max(longest, int(lengths[window]))
        if found[-1] and (len(found[-1]) + 1) * longest > size:
            found.append([])
            longest = int(lengths[window])
        found[-1].append(window)
    for batch in rng.permutation(len(found)):
        yield np.array(found[batch])


def _collate(
    log: EventLog, windows: _Windows, batch: np.ndarray
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows, values and gaps of the inputs (B, L), targets (B, 1 + L), -1 for none."""
    starts, stops = windows.starts[batch], windows.stops[batch]
    lengths = stops - starts - 1
    L = int(lengths.max())
    at = starts[:, None] + np.arange(L + 1)  # (B, 1 + L)
    valid = at < stops[:, None]
    at = np.minimum(at, len(log.rows) - 1)
    targets = np.where(valid, log.rows[at], -1)
    targets[~windows.first[batch], 0] = -1
    # The gap of each event runs to its target: at serving time, to the moment of the request.
    gaps = log_gaps(log.times[at], lengths + 1, log.times[stops - 1])[:, :L]
    inputs = valid[:, 1:]
    return (
        torch.from_numpy(np.where(inputs, log.rows[at[:, :L]], 0)),
        torch.from_numpy(np.where(inputs, log.values[at[:, :L]], 0).astype(np.float32)),
        torch.from_numpy(np.where(inputs, gaps, 0).astype(np.float32)),
        torch.from_numpy(targets),
    )


def _loss(
    model: TwoTower,
    batch: tuple[Tensor, Tensor, Tensor, Tensor],
    config: CoarseConfig,
    proposal: Tensor,
) -> Tensor:
    rows, values, gaps, targets = batch
    items = model.item_vectors()
    history = nn.functional.embedding(rows, items)
    users = model.users.every_position(history, values, gaps)
    known = targets >= 0
    users, positives = users[known], targets[known]
    if len(items) <= config.full_softmax_items:
        return full_softmax(users, items, positives)
    return sampled_softmax(users, items, positives, proposal, config.negatives)
