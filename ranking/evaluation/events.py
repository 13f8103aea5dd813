"""The events that an offline comparison may learn from, as item rows, user by user."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from ranking.retrieval.sequence import Sequences
from ranking.types import BoolArray, DoubleArray, RowArray


class TrainingEvents(Sequences):
    """Events that the models may learn from; a user may be left without any."""

    def matrix(self) -> sparse.csr_matrix:
        """Return the binary user-item matrix X, (V, N) float32."""
        ones = np.ones(len(self.rows), dtype=np.float32)
        shape = (len(self.offsets) - 1, self.items)
        x = sparse.csr_matrix((ones, (self.users, self.rows)), shape=shape)
        x.data[:] = 1.0
        return x

    def recent(self, users: RowArray, weights: NDArray[np.floating]) -> sparse.csr_matrix:
        """Return the last ``len(weights)`` events of `users` (B,), newest first, as (B, N)."""
        places = self.offsets[users + 1][:, None] - 1 - np.arange(len(weights))  # (B, n)
        valid = places >= self.offsets[users][:, None]
        which, age = np.nonzero(valid)
        return sparse.csr_matrix(
            (weights[age].astype(np.float32), (which, self.rows[places[valid]])),
            shape=(len(users), self.items),
        )

    def without_last(self) -> Validation:
        """Hold out each user's last event, where at least one remains."""
        several = np.diff(self.offsets) >= 2
        last = self.offsets[1:][several] - 1
        keep = np.ones(len(self.rows), dtype=np.bool_)
        keep[last] = False
        return Validation(
            events=self.restrict(keep),
            users=np.flatnonzero(several),
            as_of=self.times[last],
            relevant=self.rows[last][:, None],
        )

    def without_window(self, share: float = 0.1) -> Validation:
        """Hold out the last `share` of all events by time, for users with events before it."""
        cut = float(np.quantile(self.times, 1 - share, method="lower"))
        rest = self.restrict(self.times < cut)
        before, after = np.diff(rest.offsets), np.diff(self.offsets - rest.offsets)
        users = np.flatnonzero((before > 0) & (after > 0))
        relevant = np.full((len(users), int(after[users].max(initial=0))), -1, dtype=np.int64)
        for row, user in zip(relevant, users, strict=True):
            new = self.rows[self.offsets[user] + before[user] : self.offsets[user + 1]]
            row[: len(new)] = new
        return Validation(rest, users, np.full(len(users), cut), relevant)

    def restrict(self, known: BoolArray) -> TrainingEvents:
        """Return the events where `known` (T,) is true, users unchanged."""
        removed = np.concatenate([[0], np.cumsum(~known)])
        return replace(
            self,
            rows=self.rows[known],
            times=self.times[known],
            offsets=self.offsets - removed[self.offsets],
        )


@dataclass(frozen=True, slots=True)
class Validation:
    """Training events held out once more, for tuning.

    Attributes
    ----------
    events : TrainingEvents
        What is left; the users are the same.
    users : (W,) int64
        Users held out.
    as_of : (W,) float64
        Unix seconds up to which they are known.
    relevant : (W, R) int64
        Rows held out of each, -1 where padded.
    """

    events: TrainingEvents
    users: RowArray
    as_of: DoubleArray
    relevant: RowArray
