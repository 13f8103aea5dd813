"""Event sequences: the log that training reads, and the inputs of the user tower.

Serving and training build the tower's inputs here, so both mean the same numbers. Sizes as in
:mod:`ranking.types`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ranking.types import BoolArray, DoubleArray, FloatArray, Histories, RowArray

if TYPE_CHECKING:
    from features.store import Interactions

# The tower reads this many latest events; more cost time on every request and gained nothing.
TOWER_EVENTS = 64


@dataclass(frozen=True, slots=True)
class Sequences:
    """Events of V users, user by user, oldest first.

    Attributes
    ----------
    rows : (T,) int64
        Item row of each event.
    times : (T,) float64
        Unix seconds.
    offsets : (V + 1,) int64
        The events of user v are ``offsets[v]:offsets[v + 1]``.
    items : int
        Catalogue size N.
    """

    rows: RowArray
    times: DoubleArray
    offsets: RowArray
    items: int

    @property
    def users(self) -> RowArray:
        """The user of each event, (T,), counted from 0."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def counts(self) -> RowArray:
        """Return the number of events of each item, (N,)."""
        return np.bincount(self.rows, minlength=self.items).astype(np.int64)


@dataclass(frozen=True, slots=True)
class EventLog(Sequences):
    """What models are trained on: sequences of users who all have events.

    Attributes
    ----------
    values : (T,) float32
        Value of each event, NaN where it has none.
    positions : (T,) int64
        Where each event stands in the interactions that the log was made of.
    """

    values: FloatArray
    positions: RowArray

    def select(self, keep: BoolArray) -> EventLog:
        """Return the log of the events where `keep` (T,) is true."""
        users = self.users[keep]
        starts = np.flatnonzero(np.diff(users, prepend=-1))
        offsets = np.append(starts, len(users)).astype(np.int64)
        return EventLog(
            rows=self.rows[keep],
            times=self.times[keep],
            offsets=offsets,
            items=self.items,
            values=self.values[keep],
            positions=self.positions[keep],
        )

    def before_end(self) -> RowArray:
        """Return how many events the user has after each event, (T,): 0 for the latest."""
        return np.repeat(self.offsets[1:], np.diff(self.offsets)) - 1 - np.arange(len(self.rows))


def event_log(
    interactions: Interactions, item_keys: NDArray[np.int64], keep: BoolArray | None = None
) -> EventLog:
    """Return the log of `interactions` in rows of a catalogue.

    Parameters
    ----------
    interactions : features.store.Interactions
        Sorted by user, time and interaction id.
    item_keys : (N,) int64
        Ascending keys of the catalogue; events with other items are left out.
    keep : (E,) bool, optional
        Which interactions to take; all when None.

    Returns
    -------
    EventLog
    """
    places = np.searchsorted(item_keys, interactions.item_keys)
    places = np.minimum(places, max(len(item_keys) - 1, 0))
    known = (
        item_keys[places] == interactions.item_keys
        if len(item_keys)
        else np.zeros(len(places), np.bool_)
    )
    if keep is not None:
        known &= keep
    users = interactions.user_keys[known]
    starts = (
        np.flatnonzero(np.r_[True, users[1:] != users[:-1]]) if len(users) else np.empty(0, int)
    )
    return EventLog(
        rows=places[known].astype(np.int64),
        values=interactions.values[known].astype(np.float32),
        times=interactions.times[known].astype(np.float64),
        offsets=np.append(starts, len(users)).astype(np.int64),
        positions=np.flatnonzero(known),
        items=len(item_keys),
    )


def log_gaps(times: DoubleArray, lengths: RowArray, now: DoubleArray) -> FloatArray:
    """Return log(1 + seconds) from each event to the next one, or to `now` after the last.

    Parameters
    ----------
    times : (B, L) float64
        Unix seconds, oldest first, padded at the end.
    lengths : (B,) int64
    now : (B,) float64
        Moment of the request.

    Returns
    -------
    (B, L) float32
        0 where padded, or where time runs backwards.
    """
    B, L = times.shape
    following = np.empty_like(times)
    following[:, :-1] = times[:, 1:]
    last = np.maximum(lengths - 1, 0)
    following[np.arange(B), last] = now
    valid = np.arange(L) < lengths[:, None]
    gaps = np.where(valid, np.maximum(following - times, 0.0), 0.0)
    return np.log1p(gaps).astype(np.float32)


def latest(histories: Histories, limit: int) -> Histories:
    """Return the last `limit` events of each history, with no more columns than needed."""
    longest = max(1, int(histories.lengths.max()))
    if longest == histories.rows.shape[1] and longest <= limit:
        return histories
    L = min(longest, limit)
    lengths = np.minimum(histories.lengths, limit)
    place = np.arange(L)
    columns = place + (histories.lengths - lengths)[:, None]
    columns = np.minimum(columns, histories.rows.shape[1] - 1)
    request = np.arange(len(lengths))[:, None]
    padded = None if lengths.min() == L else place >= lengths[:, None]

    def cut(array: NDArray[Any], padding: float) -> NDArray[Any]:
        part: NDArray[Any] = array[request, columns]
        if padded is not None:
            part[padded] = padding
        return part

    return Histories(
        rows=cut(histories.rows, -1),
        values=cut(histories.values, 0),
        times=cut(histories.times, 0),
        lengths=lengths,
        now=histories.now,
    )


def history_vectors(rows: RowArray, item_vectors: FloatArray) -> FloatArray:
    """Return the vectors (B, L, d) of history rows (B, L), 0 where a row is -1."""
    if not len(item_vectors):
        return np.zeros((*rows.shape, item_vectors.shape[1]), np.float32)
    vectors = item_vectors[rows]
    unknown = rows < 0
    if unknown.any():
        vectors[unknown] = 0.0
    return vectors


def tower_inputs(histories: Histories, item_vectors: FloatArray) -> dict[str, NDArray[Any]]:
    """Return all inputs of ``user_tower.onnx``.

    Parameters
    ----------
    histories : Histories
        Of B requests; an event whose row is -1 reads as an item of which nothing is known.
    item_vectors : (N, d) float32

    Returns
    -------
    dict of str to array
        ``history`` (B, L, d) float32, ``values`` (B, L) float32, ``log_gaps`` (B, L) float32,
        ``lengths`` (B,) int64, with L at most :data:`TOWER_EVENTS` and at least 1.
    """
    recent = latest(histories, TOWER_EVENTS)
    return {
        "history": history_vectors(recent.rows, item_vectors),
        "values": recent.values,
        "log_gaps": log_gaps(recent.times, recent.lengths, recent.now),
        "lengths": recent.lengths,
    }
