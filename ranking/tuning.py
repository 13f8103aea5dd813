"""Settings of the baselines, picked on each user's last training event.

So a baseline is as strong as its grid, and never sees a test item. The grids hold what did best
on MovieLens 1M and on the sample, and what differs most from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ranking.baselines import Baseline, Ease, ItemToItem, Popularity, RecentPopularity, rank
from ranking.metrics import hits, ndcg_at
from ranking.training_events import TrainingEvents


@dataclass(frozen=True, slots=True)
class Family:
    """A baseline with the settings that are tried.

    Attributes
    ----------
    name, label : str
        Key in the results, and name for people.
    makers : dict of str to callable
        Settings in words, and what trains the baseline with them.
    """

    name: str
    label: str
    makers: dict[str, Callable[[TrainingEvents], Baseline]]


def families(events: TrainingEvents, most_ease: int) -> list[Family]:
    """Return the baselines to compare with.

    Parameters
    ----------
    events : TrainingEvents
    most_ease : int
        EASE is left out when users and items are both more than this: it inverts a matrix of
        the smaller number.
    """
    found = [
        Family("popularity", "Popularity", {"training events of all time": Popularity}),
        Family(
            "popularity_recent",
            "Recent popularity",
            {
                f"training events of the last {days} days": _recent(days)
                for days in (7, 30, 90, 365)
            },
        ),
        Family(
            "item_to_item",
            "Item-to-item",
            {
                f"co-visitation within 12 places, backward {backward}, damping {damping}, "
                f"decay {decay}": _item_to_item(backward, damping, decay)
                for backward, damping, decay in (
                    (0.2, 0.25, 0.6),
                    (0.2, 0.25, 0.8),
                    (0.5, 0.25, 0.8),
                    (0.5, 0.0, 0.6),
                    (1.0, 0.5, 0.8),
                )
            },
        ),
    ]
    if min(len(events.offsets) - 1, events.items) <= most_ease:
        ease = {
            f"regularisation {regularisation}, latest {latest or 'all'} items": _ease(
                regularisation, latest
            )
            for regularisation, latest in ((300, 10), (300, 50), (1000, 5), (500, None))
        }
        found.append(Family("ease", "EASE", ease))
    return found


def _recent(days: float) -> Callable[[TrainingEvents], Baseline]:
    return lambda events: RecentPopularity(events, days)


def _item_to_item(
    backward: float, damping: float, decay: float
) -> Callable[[TrainingEvents], Baseline]:
    return lambda events: ItemToItem(events, backward=backward, damping=damping, decay=decay)


def _ease(regularisation: float, latest: int | None) -> Callable[[TrainingEvents], Baseline]:
    return lambda events: Ease(events, regularisation, latest)


def tuned(
    makers: Sequence[Callable[[TrainingEvents], Baseline]],
    events: TrainingEvents,
    most_users: int = 2000,
    seed: int = 0,
) -> tuple[Baseline, int]:
    """Pick the maker with the best NDCG@10 on the users' last training events.

    Parameters
    ----------
    makers : sequence of callables
        Each one trains a baseline on the events that it is given.
    events : TrainingEvents
    most_users : int
        Users drawn for the comparison.
    seed : int
        Seed of the draw.

    Returns
    -------
    baseline : Baseline
        The best one, trained again on all `events`.
    choice : int
        Its position in `makers`.
    """
    rest, users, rows, times = events.without_last()
    if len(users) == 0 or len(makers) == 1:
        return makers[0](events), 0
    chosen = np.arange(len(users))
    if len(users) > most_users:
        chosen = np.sort(np.random.default_rng(seed).choice(len(users), most_users, replace=False))
    quality = []
    for make in makers:
        lists = rank(make(rest), rest, users[chosen], times[chosen], 10)
        hit = hits(lists, rows[chosen][:, None])
        quality.append(ndcg_at(hit, np.ones(len(chosen), dtype=np.int64), 10).mean())
    choice = int(np.argmax(quality))
    return makers[choice](events), choice
