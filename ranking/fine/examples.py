"""Training lists of the ranker: the retriever's own candidates for events that it never saw.

A list has one target more than candidates: that what the user took is none of them. So the
ranker's scores say how likely each candidate is, not only which comes first
(:mod:`ranking.fine.probability`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ranking.fine.inputs import RANKER_EVENTS
from ranking.retrieval.sequence import latest
from ranking.types import Candidates, FloatArray, Histories, RowArray

# Arrays of vectors are gathered anew for each batch: rows take a sixteenth of the memory.
_VECTORS = ("candidates", "history")


@dataclass(frozen=True, slots=True)
class Examples:
    """E lists of C candidates with what was taken.

    Attributes
    ----------
    inputs : dict of str to array
        Inputs of the ranker but for vectors, E along the first axis.
    rows : (E, C) int64
        Candidates in coarse order, -1 where padded.
    history_rows : (E, L) int64
        Latest events, oldest first, -1 where padded.
    targets : (E, C + 1) float32
        Share of each candidate in what the user took, and last the share that retrieval missed;
        adds up to 1.
    groups : (E,) int64
        The user of each list.
    offered : int
        Items taken, over all lists.
    """

    inputs: dict[str, NDArray[Any]]
    rows: RowArray
    history_rows: RowArray
    targets: FloatArray
    groups: RowArray
    offered: int

    def __len__(self) -> int:
        """Return E."""
        return len(self.targets)

    @property
    def retrieved(self) -> int:
        """How many of the items taken are among the candidates."""
        return int(np.count_nonzero(self.targets[:, :-1]))

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


def collect(
    parts: Sequence[tuple[Candidates, Histories, dict[str, NDArray[Any]]]],
    taken: Sequence[RowArray],
    later: Sequence[RowArray],
    groups: RowArray,
) -> Examples:
    """Make examples of retrieved batches.

    Parameters
    ----------
    parts : sequence of (Candidates, Histories, dict)
        Batches in order: what was retrieved, for which histories, and the ranker's inputs.
    taken : sequence of (m,) int64
        For each list over all batches, distinct rows that the ranker shall put first; at least
        one.
    later : sequence of (m,) int64
        Rows that each user took afterwards: good items, so no negatives.
    groups : (E,) int64
        The user of each list.
    """
    if not parts:
        none = np.empty((0, 0), np.int64)
        return Examples({}, none, none, np.empty((0, 1), np.float32), groups, offered=0)
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
    targets = np.zeros((len(rows), C + 1), np.float32)
    for place, (wanted, afterwards) in enumerate(zip(taken, later, strict=True)):
        hit = np.isin(rows[place], wanted)
        targets[place, :C] = hit / len(wanted)
        targets[place, C] = 1 - hit.sum() / len(wanted)
        inputs["mask"][place][np.isin(rows[place], afterwards) & ~hit] = 0.0
    return Examples(inputs, rows, history, targets, groups, offered=sum(map(len, taken)))


def _wide(array: NDArray[Any], width: int, padding: float) -> NDArray[Any]:
    short = width - array.shape[1]
    if short <= 0:
        return array
    fill = np.full((len(array), short, *array.shape[2:]), padding, array.dtype)
    return np.concatenate([array, fill], axis=1)
