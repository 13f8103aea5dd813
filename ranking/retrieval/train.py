"""Training of the coarse stage: next-item prediction at every position of every history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ranking.optimiser import Optimiser
from ranking.retrieval.initial import attribute_map, initial_vectors
from ranking.retrieval.loss import Seen, full_softmax, sampled_softmax
from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import TOWER_EVENTS, EventLog, log_gaps
from ranking.training_config import CoarseConfig
from ranking.types import FloatArray, Progress

# Windows of about the same length share a batch; the jitter changes who meets whom.
_LENGTH_JITTER = 8.0


@dataclass(frozen=True, slots=True)
class _Windows:
    """Windows of at most ``TOWER_EVENTS`` + 1 events: each predicts its events from those before.

    ``starts`` and ``stops`` are positions in the log, ``begins`` that of the user's first event;
    the first event of a window is predicted from the start token only where both are one.
    """

    starts: np.ndarray
    stops: np.ndarray
    begins: np.ndarray


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
    rows = torch.from_numpy(log.rows)
    proposal = torch.from_numpy(_proposal(log))
    step = 0
    for epoch in range(config.epochs):
        for batch in batches if epoch == 0 else _batches(windows, config.batch_events, rng):
            if step >= total:
                break
            optimiser.step(_loss(model, _collate(log, windows, batch), config, rows, proposal))
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
    starts, stops, begins = [], [], []
    for begin, end in zip(log.offsets[:-1].tolist(), log.offsets[1:].tolist(), strict=True):
        for stop in range(end, begin, -length):
            starts.append(max(begin, stop - length))
            stops.append(stop)
            begins.append(begin)
    return _Windows(np.array(starts), np.array(stops), np.array(begins))


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


@dataclass(frozen=True, slots=True)
class _Batch:
    """Inputs (B, L) of the user tower, and P positions of its output with their targets."""

    rows: Tensor
    values: Tensor
    gaps: Tensor
    known: Tensor  # (B, 1 + L) bool, P of them true
    targets: Tensor  # (P,)
    starts: Tensor  # (P,): the user's events before the target are log.rows[start:stop]
    stops: Tensor


def _collate(log: EventLog, windows: _Windows, batch: np.ndarray) -> _Batch:
    starts, stops, begins = (
        part[batch] for part in (windows.starts, windows.stops, windows.begins)
    )
    lengths = stops - starts - 1
    L = int(lengths.max())
    at = starts[:, None] + np.arange(L + 1)  # (B, 1 + L)
    valid = at < stops[:, None]
    at = np.minimum(at, len(log.rows) - 1)
    known = valid.copy()
    known[starts > begins, 0] = False
    # The gap of each event runs to its target: at serving time, to the moment of the request.
    gaps = log_gaps(log.times[at], lengths + 1, log.times[stops - 1])[:, :L]
    inputs = valid[:, 1:]
    events = at[known]
    return _Batch(
        rows=torch.from_numpy(np.where(inputs, log.rows[at[:, :L]], 0)),
        values=torch.from_numpy(np.where(inputs, log.values[at[:, :L]], 0).astype(np.float32)),
        gaps=torch.from_numpy(np.where(inputs, gaps, 0).astype(np.float32)),
        known=torch.from_numpy(known),
        targets=torch.from_numpy(log.rows[events]),
        starts=torch.from_numpy(np.broadcast_to(begins[:, None], known.shape)[known]),
        stops=torch.from_numpy(events),
    )


def _loss(
    model: TwoTower, batch: _Batch, config: CoarseConfig, rows: Tensor, proposal: Tensor
) -> Tensor:
    items = model.item_vectors()
    history = nn.functional.embedding(batch.rows, items)
    users = model.users.every_position(history, batch.values, batch.gaps)[batch.known]
    if len(items) <= config.full_softmax_items:
        seen = Seen(rows, batch.starts, batch.stops) if config.spare_seen else None
        return full_softmax(users, items, batch.targets, seen)
    return sampled_softmax(users, items, batch.targets, proposal, config.negatives)
