"""Batches of the towers' training: histories cut into windows, windows of like length together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ranking.retrieval.sequence import TOWER_EVENTS, EventLog, log_gaps
from ranking.types import RowArray

# Windows of about the same length share a batch; the jitter changes who meets whom.
_LENGTH_JITTER = 8.0


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of at most ``TOWER_EVENTS`` + 1 events: each predicts its events from those before.

    Attributes
    ----------
    starts, stops : (W,) int64
        Positions in the log.
    begins : (W,) int64
        Position of the user's first event. The first event of a window is predicted, from the
        start token, only where it is that one.
    """

    starts: RowArray
    stops: RowArray
    begins: RowArray

    def targets(self, chosen: RowArray) -> int:
        """Return how many events the windows `chosen` predict."""
        lengths = self.stops[chosen] - self.starts[chosen]
        return int(lengths.sum() - (self.starts[chosen] > self.begins[chosen]).sum())


def windows_of(log: EventLog) -> Windows:
    """Cut each history from its end, so that the latest events stand in a full window."""
    length = TOWER_EVENTS + 1
    begin, end = log.offsets[:-1], log.offsets[1:]
    parts = -(-(end - begin) // length)
    user = np.repeat(np.arange(len(parts)), parts)
    place = np.arange(len(user)) - np.repeat(np.cumsum(parts) - parts, parts)
    stops = end[user] - place * length
    return Windows(np.maximum(begin[user], stops - length), stops, begin[user])


def batches(windows: Windows, size: int, rng: np.random.Generator) -> Iterator[RowArray]:
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
class Batch:
    """Inputs (B, L) of the user tower, and P positions of its output with their targets."""

    rows: Tensor
    values: Tensor
    gaps: Tensor
    known: Tensor  # (B, 1 + L) bool, P of them true
    targets: Tensor  # (P,)
    starts: Tensor  # (P,): the user's events before the target are log.rows[start:stop]
    stops: Tensor


def collate(log: EventLog, windows: Windows, chosen: RowArray, device: torch.device) -> Batch:
    """Return the batch of the windows `chosen` on `device`."""
    starts, stops, begins = (
        part[chosen] for part in (windows.starts, windows.stops, windows.begins)
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
    arrays = (
        np.where(inputs, log.rows[at[:, :L]], 0),
        np.where(inputs, log.values[at[:, :L]], 0).astype(np.float32),
        np.where(inputs, gaps, 0).astype(np.float32),
        known,
        log.rows[events],
        np.broadcast_to(begins[:, None], known.shape)[known],
        events,
    )
    return Batch(*(torch.from_numpy(array).to(device) for array in arrays))
