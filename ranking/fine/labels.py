"""What the ranker learns to put first: events that the towers have not seen.

Two questions can be asked of a recommender, and a ranker answers the one that it was trained on.
``next``: which item does the user take next, a moment after the last one? Its lists are as of
each of a user's latest events. ``window``: which items does the user take in the time to come?
Its lists are all as of one moment, and what is taken from then on counts alike.
"""

from __future__ import annotations

import numpy as np

from ranking.protocols import time_cut
from ranking.retrieval.sequence import EventLog
from ranking.training_config import FineConfig
from ranking.types import BoolArray, RowArray


def held_back(log: EventLog, config: FineConfig) -> BoolArray:
    """Choose the events that the coarse stage must not see, so that the ranker learns from them.

    Parameters
    ----------
    log : EventLog
    config : FineConfig

    Returns
    -------
    (T,) bool
        With labels ``next``, the latest events of each user, at most ``label_share`` of them, so
        that a history remains; with ``window``, all events of the last ``window_share``.
    """
    if config.labels == "window":
        held = log.times >= time_cut(log.times, config.window_share)
        return held & ~held.all()
    lengths = np.diff(log.offsets)
    most = np.minimum(config.label_events, np.floor(config.label_share * lengths)).astype(np.int64)
    return log.before_end() < np.repeat(most, lengths)


def list_events(log: EventLog, held: BoolArray, config: FineConfig, seed: int) -> RowArray:
    """Return the events just before which a list is made, at most ``most_labels``.

    Parameters
    ----------
    log : EventLog
    held : (T,) bool
        See :func:`held_back`.
    config : FineConfig
    seed : int
        Of the draw where there are more.

    Returns
    -------
    (E,) int64
        Positions in the log, ascending. With labels ``next``, those that are the latest of their
        user come first; with ``window``, the first event in the window of each user who has
        a history.
    """
    places = np.flatnonzero(held)
    before_end = log.before_end()[places]
    if config.labels == "window":
        first = held[places] & ~held[np.maximum(places - 1, 0)]
        first &= log.offsets[log.users[places]] < places
        places, before_end = places[first], np.zeros(int(first.sum()), np.int64)
    chance = np.random.default_rng(seed).random(len(places))
    order = np.lexsort((chance, before_end))
    return np.sort(places[order[: config.most_labels]])


def labels(
    log: EventLog, events: RowArray, config: FineConfig
) -> tuple[list[RowArray], list[RowArray]]:
    """Return what was taken at each of `events`, and what was taken later, which is no negative.

    Parameters
    ----------
    log : EventLog
    events : (E,) int64
        See :func:`list_events`.
    config : FineConfig
    """
    ends = log.offsets[log.users[events] + 1].tolist()
    spans = list(zip(events.tolist(), ends, strict=True))
    if config.labels == "window":
        return [np.unique(log.rows[at:end]) for at, end in spans], [log.rows[:0]] * len(spans)
    return [log.rows[at : at + 1] for at, _ in spans], [log.rows[at + 1 : end] for at, end in spans]
