"""Settings of the baselines, picked on training events that are held out as the test is.

So a baseline is as strong as its grid, and never sees a test item. The grids hold what did best
on MovieLens 1M and on the sample in both protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ranking.evaluation.baselines import (
    Baseline,
    Ease,
    ItemToItem,
    Popularity,
    RecentPopularity,
    rank,
)
from ranking.evaluation.events import TrainingEvents, Validation
from ranking.evaluation.ials import Factors, Ials, factorise
from ranking.evaluation.metrics import hits, ndcg_at, relevant_counts

_ALPHA = 0.3


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
                f"co-visitation, backward {backward}, damping {damping}, decay {decay}, "
                f"latest {latest}": _item_to_item(backward, damping, decay, latest)
                for backward, damping, decay, latest in (
                    (0.2, 0.25, 0.6, 20),
                    (0.2, 0.25, 0.8, 20),
                    (0.5, 0.25, 0.8, 20),
                    (0.5, 0.0, 0.6, 20),
                    (1.0, 0.25, 0.97, 200),
                    (1.0, 0.5, 0.97, 200),
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
    factors = _Factors(events)
    ials = {
        f"{factors.dimensions} dimensions, alpha {_ALPHA}, regularisation {regularisation}, latest "
        f"{latest or 'all'} items": _ials(factors, regularisation, latest)
        for regularisation in (0.003, 0.01)
        for latest in (None, 20, 5)
    }
    found.append(Family("ials", "iALS", ials))
    return found


class _Factors:
    """The latest factors: settings that differ in `latest` alone share them."""

    def __init__(self, events: TrainingEvents) -> None:
        # More directions than a twentieth of the users tell noise apart, and cost their cube.
        self.dimensions = int(np.clip((len(events.offsets) - 1) // 20, 16, 128))
        self._known: tuple[TrainingEvents, Factors] | None = None

    def get(self, events: TrainingEvents, regularisation: float) -> Factors:
        if self._known is not None:
            of, factors = self._known
            if of is events and factors.regularisation == regularisation:
                return factors
        factors = factorise(events, self.dimensions, _ALPHA, regularisation)
        self._known = (events, factors)
        return factors


def _ials(
    factors: _Factors, regularisation: float, latest: int | None
) -> Callable[[TrainingEvents], Baseline]:
    return lambda events: Ials(events, factors.get(events, regularisation), latest)


def _recent(days: float) -> Callable[[TrainingEvents], Baseline]:
    return lambda events: RecentPopularity(events, days)


def _item_to_item(
    backward: float, damping: float, decay: float, latest: int
) -> Callable[[TrainingEvents], Baseline]:
    return lambda events: ItemToItem(
        events, backward=backward, damping=damping, decay=decay, latest=latest
    )


def _ease(regularisation: float, latest: int | None) -> Callable[[TrainingEvents], Baseline]:
    return lambda events: Ease(events, regularisation, latest)


def tuned(
    makers: Sequence[Callable[[TrainingEvents], Baseline]],
    events: TrainingEvents,
    validation: Validation,
    most_users: int = 2000,
    seed: int = 0,
) -> tuple[Baseline, int]:
    """Pick the maker with the best NDCG@10 on held-out training events.

    Parameters
    ----------
    makers : sequence of callables
        Each one trains a baseline on the events that it is given.
    events : TrainingEvents
    validation : Validation
        Made of `events` the way the test was made of all events.
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
    total = len(validation.users)
    if total == 0 or len(makers) == 1:
        return makers[0](events), 0
    chosen = np.arange(total)
    if total > most_users:
        chosen = np.sort(np.random.default_rng(seed).choice(total, most_users, replace=False))
    rest, relevant = validation.events, validation.relevant[chosen]
    quality = []
    for make in makers:
        lists = rank(make(rest), rest, validation.users[chosen], validation.as_of[chosen], 10)
        quality.append(ndcg_at(hits(lists, relevant), relevant_counts(relevant), 10).mean())
    choice = int(np.argmax(quality))
    return makers[choice](events), choice
