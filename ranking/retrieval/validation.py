"""How good the towers are between passes: NDCG@10 of events that they never train on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ranking.retrieval.model import TwoTower
from ranking.retrieval.sequence import TOWER_EVENTS, EventLog, tower_inputs
from ranking.types import BoolArray, Histories, RowArray

_TOP = 10
# Scores held at once: 32 MB.
_SCORES = 2**23


@dataclass(frozen=True, slots=True)
class Validation:
    """U events to be found, each with all that its user had done before.

    Attributes
    ----------
    histories : Histories
        The latest events before each.
    targets : (U,) int64
        Row of its item.
    seen : tuple of (m,) int64
        Rows that its user had before; these are left out of the ranking.
    """

    histories: Histories
    targets: RowArray
    seen: tuple[RowArray, ...]

    def ndcg(self, model: TwoTower) -> float:
        """Return the mean NDCG@10 over the whole catalogue; ties count against the model."""
        training = model.training
        model.eval()
        gain = 0.0
        with torch.no_grad():
            items = model.item_vectors()
            feeds = tower_inputs(self.histories, items.cpu().numpy())
            step = max(1, _SCORES // len(items))
            for start in range(0, len(self.targets), step):
                part = slice(start, start + step)
                inputs = (torch.from_numpy(feed[part]).to(items.device) for feed in feeds.values())
                scores = model.users(*inputs) @ items.T  # (step, N)
                line = torch.arange(len(scores), device=scores.device)
                targets = torch.from_numpy(self.targets[part]).to(scores.device)
                hit = scores[line, targets]
                seen = self.seen[part]
                lines = np.repeat(np.arange(len(seen)), [len(rows) for rows in seen])
                scores[torch.from_numpy(lines), torch.from_numpy(np.concatenate(seen))] = -torch.inf
                scores[line, targets] = hit
                rank = (~(scores < hit[:, None])).sum(dim=1)  # 1 for the best
                gain += float(torch.where(rank <= _TOP, 1 / torch.log2(rank + 1.0), 0.0).sum())
        model.train(training)
        return gain / len(self.targets)


def last_events(log: EventLog, held: BoolArray, users: int, seed: int) -> Validation | None:
    """Take the last event of users for validation.

    Parameters
    ----------
    log : EventLog
        All events that training may use.
    held : (T,) bool
        Those that the towers do not train on; only these are taken.
    users : int
        At most so many, drawn.
    seed : int

    Returns
    -------
    Validation or None
        None where `held` has no user's last event.
    """
    places = np.flatnonzero(held & (log.before_end() == 0))
    if not len(places) or not users:
        return None
    if len(places) > users:
        places = np.sort(np.random.default_rng(seed).choice(places, users, replace=False))
    begins = log.offsets[log.users[places]]
    lengths = np.minimum(places - begins, TOWER_EVENTS)
    L = max(1, int(lengths.max()))
    column = np.arange(L)
    valid = column < lengths[:, None]
    at = np.where(valid, (places - lengths)[:, None] + column, 0)
    return Validation(
        histories=Histories(
            rows=np.where(valid, log.rows[at], -1),
            values=np.where(valid, log.values[at], 0).astype(np.float32),
            times=np.where(valid, log.times[at], 0.0),
            lengths=lengths,
            now=log.times[places],
        ),
        targets=log.rows[places],
        seen=tuple(
            log.rows[begin:place]
            for begin, place in zip(begins.tolist(), places.tolist(), strict=True)
        ),
    )
