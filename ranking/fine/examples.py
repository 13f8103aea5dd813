"""Training lists of the ranker: the retriever's own candidates for events that it never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranking.fine.inputs import RANKER_EVENTS
from ranking.retrieval.sequence import EventLog, latest
from ranking.types import BoolArray, Candidates, FloatArray, Histories, RowArray

# Arrays of vectors are gathered anew for each batch: rows take a sixteenth of the memory.
_VECTORS = ("candidates", "history")


@dataclass(frozen=True, slots=True)
class Examples:
    """E lists of C candidates, each with one label.

    Attributes
    ----------
    inputs : dict of str to array
        Inputs of the ranker but for vectors, E along the first axis.
    rows : (E, C) int64
        Candidates in coarse order, -1 where padded.
    history_rows : (E, L) int64
        Latest events, oldest first, -1 where padded.
    labels : (E,) int64
        Place of the label among the candidates.
    offered : int
        Labels that retrieval was asked for; those that it missed make no example.
    """

    inputs: dict[str, NDArray[Any]]
    rows: RowArray
    history_rows: RowArray
    labels: RowArray
    offered: int

    def __len__(self) -> int:
        """Return E."""
        return len(self.labels)

    def batch(self, chosen: RowArray, vectors: FloatArray) -> dict[str, NDArray[Any]]:
        """Return all inputs of the ranker for the examples `chosen`, by name.

        Parameters
        ----------
        chosen : (B,) int64
        vectors : (N, d) float32
        """
        feeds = {name: array[chosen] for name, array in self.inputs.items()}
        for name, rows in (
            ("candidates", self.rows[chosen]),
            ("history", self.history_rows[chosen]),
        ):
            feeds[name] = np.where(rows[..., None] >= 0, vectors[rows], np.float32(0))
        return feeds


def held_back(log: EventLog, events: int, share: float) -> BoolArray:
    """Choose the events that the coarse stage must not see, so that the ranker learns from them.

    Parameters
    ----------
    log : EventLog
    events : int
        Latest events of each user, at most.
    share : float
        And at most this share of the user's events, so that a history remains.

    Returns
    -------
    (T,) bool
    """
    lengths = np.diff(log.offsets)
    most = np.minimum(events, np.floor(share * lengths)).astype(np.int64)
    return log.before_end() < np.repeat(most, lengths)


def collect(
    parts: Sequence[tuple[Candidates, Histories, dict[str, NDArray[Any]]]],
    labels: RowArray,
    later: Sequence[RowArray],
) -> Examples:
    """Make examples of retrieved batches, dropping those whose label retrieval missed.

    Parameters
    ----------
    parts : sequence of (Candidates, Histories, dict)
        Batches in order: what was retrieved, for which histories, and the ranker's inputs.
    labels : (E,) int64
        Row of the item that each user took next, over all batches.
    later : sequence of (m,) int64
        Rows that each user took afterwards: good items, so no negatives.
    """
    if not parts:
        nothing = np.empty(0, np.int64)
        none = np.empty((0, 0), np.int64)
        return Examples({}, none, none, nothing, offered=0)
    C = max(part[0].rows.shape[1] for part in parts)
    L = max(part[2]["values"].shape[1] for part in parts)
    rows = np.concatenate([_wide(part[0].rows, C, -1) for part in parts])
    history = np.concatenate([_wide(latest(part[1], RANKER_EVENTS).rows, L, -1) for part in parts])
    inputs = {
        name: np.concatenate(
            [
                part[2][name]
                if part[2][name].ndim == 1 or name == "user"
                else _wide(part[2][name], L if name in ("values", "log_gaps") else C, 0)
                for part in parts
            ]
        )
        for name in parts[0][2]
        if name not in _VECTORS
    }
    hit = rows == labels[:, None]
    for example, taken in enumerate(later):
        inputs["mask"][example][np.isin(rows[example], taken) & ~hit[example]] = 0.0
    kept = np.flatnonzero(hit.any(axis=1))
    return Examples(
        inputs={name: array[kept] for name, array in inputs.items()},
        rows=rows[kept],
        history_rows=history[kept],
        labels=hit[kept].argmax(axis=1),
        offered=len(labels),
    )


def _wide(array: NDArray[Any], width: int, padding: float) -> NDArray[Any]:
    short = width - array.shape[1]
    if short <= 0:
        return array
    fill = np.full((len(array), short, *array.shape[2:]), padding, array.dtype)
    return np.concatenate([array, fill], axis=1)
