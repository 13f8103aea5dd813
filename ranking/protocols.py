"""How events are held out for an offline evaluation.

``leave-last-out``: the last event of each user, by (time, interaction id), is the test item;
the events before it are the history and everything is read as of that event. The usual protocol
of the literature: other users' later events are in the training data.

``time-split``: the last share of all events by time is the test window; nothing in it is seen
in training; users with events on both sides are tested on all their new items, as of the cut.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from features.errors import InputError
from ranking.types import BoolArray, DoubleArray, RowArray

if TYPE_CHECKING:
    from features.store import Interactions

ProtocolName = Literal["leave-last-out", "time-split"]


@dataclass(frozen=True, slots=True)
class Split:
    """Held-out events of U test users among E interactions.

    Attributes
    ----------
    protocol : str
        Name of the protocol.
    train : (E,) bool
        Events that a model may learn from.
    user_keys : (U,) int64
        Test users in ascending order of their key.
    as_of : (U,) float64
        Unix seconds: the state of a user holds the events before this moment.
    before_ids : (U,) int64 or None
        Events of the user at the very moment `as_of` are history when their interaction id is
        smaller. None where the moment alone decides.
    relevant : (U, R) int64
        Keys of the test items, -1 where padded; none of them is in the user's history.
    starts, stops : (U,) int64
        The user's history is ``interactions[start:stop]``.
    skipped : dict
        Users left out: ``single_event`` or ``one_sided`` (no event on one side), ``repeated``
        (all their test items are in their history, which the seen filter removes).
    cut : float or None
        Unix seconds of the time split.
    gap : float or None
        Seconds from `as_of` to the request, where the moment of the held-out event is hidden;
        nothing that happened in between is known.
    """

    protocol: ProtocolName
    train: BoolArray
    user_keys: RowArray
    as_of: DoubleArray
    before_ids: RowArray | None
    relevant: RowArray
    starts: RowArray
    stops: RowArray
    skipped: dict[str, int]
    cut: float | None = None
    gap: float | None = None


def leave_last_out(interactions: Interactions) -> Split:
    """Hold out each user's last event.

    A user with a single event keeps it in training and is not tested.

    Parameters
    ----------
    interactions : Interactions
        Sorted by (user, time, interaction id).

    Returns
    -------
    Split
    """
    users, starts, ends = _spans(interactions.user_keys)
    last = ends - 1
    several = ends - starts >= 2
    train = np.ones(len(interactions.user_keys), dtype=np.bool_)
    train[last[several]] = False
    repeated = _seen_before(interactions, starts, last) & several
    kept = several & ~repeated
    last = last[kept]
    return Split(
        protocol="leave-last-out",
        train=train,
        user_keys=users[kept],
        as_of=interactions.times[last],
        before_ids=interactions.interaction_ids[last],
        relevant=interactions.item_keys[last][:, None],
        starts=starts[kept],
        stops=last,
        skipped={"single_event": int((~several).sum()), "repeated": int(repeated.sum())},
    )


def hide_request_time(interactions: Interactions, split: Split) -> Split:
    """Put each request of leave-last-out right after the previous event of its user.

    Users are known up to that event, and everything else up to its moment. The request comes
    one median gap of training later, the same for everyone, so that the true gap to the
    held-out event, which a service would know, tells nothing.

    Parameters
    ----------
    interactions : Interactions
        What `split` was made of.
    split : Split
        Of :func:`leave_last_out`.

    Raises
    ------
    InputError
        For a time split, where all requests come at the cut.
    """
    if split.protocol != "leave-last-out":
        raise InputError(
            f"hide_request_time with {split.protocol}: every request comes at the cut there, so "
            "there is nothing to hide; use it with leave-last-out"
        )
    times, users = interactions.times[split.train], interactions.user_keys[split.train]
    gaps = np.diff(times)[users[1:] == users[:-1]]
    previous = split.stops - 1
    return replace(
        split,
        as_of=interactions.times[previous],
        # Of the events at that very moment, those up to the previous one are known.
        before_ids=interactions.interaction_ids[previous] + 1,
        gap=float(np.median(gaps)) if len(gaps) else 0.0,
    )


def time_split(interactions: Interactions, share: float = 0.1, cut: float | None = None) -> Split:
    """Hold out the last events of all users together.

    Parameters
    ----------
    interactions : Interactions
        Sorted by (user, time, interaction id).
    share : float
        Share of all events in the test window; events of the same second stay together, on the
        test side.
    cut : float, optional
        Unix seconds; replaces `share` when a release was trained with this cut.

    Returns
    -------
    Split

    Raises
    ------
    InputError
        If no event is left on the training side.
    """
    if cut is None:
        cut = time_cut(interactions.times, share)
    train = interactions.times < cut
    if not train.any():
        raise InputError(
            f"time split at {cut:.0f} (unix s): all {len(train)} events are in the test window, "
            "expected some before it; load data that spans more time, or use leave-last-out"
        )
    users, starts, ends = _spans(interactions.user_keys)
    before = np.add.reduceat(train, starts, dtype=np.int64)
    stops = starts + before
    one_sided = (before == 0) | (stops == ends)
    tested = np.flatnonzero(~one_sided)
    new_items = [
        _new_items(interactions.item_keys[a:b], interactions.item_keys[b:c])
        for a, b, c in zip(starts[tested], stops[tested], ends[tested], strict=True)
    ]
    kept = np.array([len(items) > 0 for items in new_items], dtype=np.bool_)
    new_items = [items for items in new_items if len(items)]
    relevant = np.full((len(new_items), max(map(len, new_items), default=0)), -1, dtype=np.int64)
    for row, items in zip(relevant, new_items, strict=True):
        row[: len(items)] = items
    tested = tested[kept]
    return Split(
        protocol="time-split",
        train=train,
        user_keys=users[tested],
        as_of=np.full(len(tested), cut),
        before_ids=None,
        relevant=relevant,
        starts=starts[tested],
        stops=stops[tested],
        skipped={"one_sided": int(one_sided.sum()), "repeated": int((~kept).sum())},
        cut=cut,
    )


def time_cut(times: DoubleArray, share: float = 0.1) -> float:
    """Return the moment (unix s) from which the last `share` of all events happened."""
    if not 0 < share < 1:
        raise InputError(f"share of the test window is {share}: expected more than 0, less than 1")
    if len(times) == 0:
        raise InputError("time split of 0 events: expected at least two; load data first")
    return float(np.sort(times)[min(int(np.floor(len(times) * (1 - share))), len(times) - 1)])


def _spans(user_keys: RowArray) -> tuple[RowArray, RowArray, RowArray]:
    users, starts = np.unique(user_keys, return_index=True)
    starts = starts.astype(np.int64)
    return users, starts, np.append(starts[1:], len(user_keys)).astype(np.int64)


def _seen_before(interactions: Interactions, starts: RowArray, last: RowArray) -> BoolArray:
    items = interactions.item_keys
    if len(items) == 0:
        return np.zeros(0, dtype=np.bool_)
    same = items == np.repeat(items[last], last - starts + 1)
    return np.asarray(np.add.reduceat(same, starts, dtype=np.int64) > 1)


def _new_items(history: RowArray, window: RowArray) -> RowArray:
    return np.setdiff1d(window, history).astype(np.int64)
