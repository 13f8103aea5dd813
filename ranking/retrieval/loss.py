"""The coarse stage's loss: softmax over the catalogue, in full or over sampled negatives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Logits held at once: 2 MB, so that the passes over them stay in a core's cache.
_LOGITS = 2**19


@dataclass(frozen=True, slots=True)
class Seen:
    """The items that each position's user has had: runs of one list.

    A list that is shown leaves out what its user has had, so these items need not lose against
    the positive, and the vectors are spared the work of telling the two apart.

    Attributes
    ----------
    rows : (T,) int64
        Item rows.
    starts, stops : (P,) int64
        Position p has seen ``rows[starts[p]:stops[p]]``.
    """

    rows: Tensor
    starts: Tensor
    stops: Tensor

    def places(self, part: slice, width: int) -> Tensor:
        """Return where the seen items of the positions in `part` stand in a (P', width) table."""
        starts = self.starts[part]
        lengths = self.stops[part] - starts
        before = torch.cumsum(lengths, 0) - lengths
        table = torch.arange(len(lengths), device=lengths.device) * width
        shift, line = torch.repeat_interleave(
            torch.stack([starts - before, table], dim=1), lengths, dim=0
        ).T
        places: Tensor = self.rows[torch.arange(len(shift), device=shift.device) + shift] + line
        return places


class _FullSoftmax(torch.autograd.Function):
    """Mean cross entropy of ``users @ items.T``; the gradient is taken block by block on the way.

    So the logits are never all in memory, which takes half the time.
    """

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # torch has no type for it
        users: Tensor,
        items: Tensor,
        targets: Tensor,
        seen: Seen | None,
    ) -> Tensor:
        by_users, by_items = torch.empty_like(users), torch.zeros_like(items)
        loss = users.new_zeros(())
        step = max(1, _LOGITS // len(items))
        for start in range(0, len(users), step):
            part = slice(start, start + step)
            at = torch.arange(len(targets[part]), device=targets.device)
            logits = users[part] @ items.T  # (step, N)
            hit = logits[at, targets[part]]
            if seen is not None:
                logits.view(-1).index_fill_(0, seen.places(part, len(items)), -torch.inf)
                logits[at, targets[part]] = hit
            top = logits.amax(dim=1)
            slopes = logits.sub_(top[:, None]).exp_()
            total = slopes.sum(dim=1)
            slopes.div_(total[:, None])
            slopes[at, targets[part]] -= 1.0
            by_users[part] = slopes @ items
            by_items.addmm_(slopes.T, users[part])
            loss += (total.log() + top - hit).sum()
        ctx.save_for_backward(by_users, by_items)
        return loss / len(users)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:  # noqa: ANN401  # torch has no type for ctx
        by_users, by_items = ctx.saved_tensors
        scale = gradients[0] / len(by_users)
        return by_users * scale, by_items * scale, None, None


def full_softmax(users: Tensor, items: Tensor, targets: Tensor, seen: Seen | None = None) -> Tensor:
    """Return the mean cross entropy over the whole catalogue.

    Parameters
    ----------
    users : (P, d)
    items : (N, d)
    targets : (P,) int64
        Row of each positive.
    seen : Seen, optional
        Items that are no negatives of a position; a positive among them still counts.
    """
    loss: Tensor = _FullSoftmax.apply(users, items, targets, seen)  # type: ignore[no-untyped-call]  # torch's apply has no types
    return loss


def sampled_softmax(
    users: Tensor, items: Tensor, targets: Tensor, proposal: Tensor, negatives: int
) -> Tensor:
    """Return the mean cross entropy against shared negatives, with log-q correction.

    A negative drawn `negatives` times from `proposal` q has expected count ``negatives · q``,
    whose logarithm is taken off its logit, so the sum estimates the full softmax's (Bengio and
    Senécal 2008; Yi et al. 2019, https://research.google/pubs/pub48840/). A positive that was
    drawn as its own negative is masked.

    Parameters
    ----------
    users : (P, d)
    items : (N, d)
    targets : (P,) int64
    proposal : (N,)
        Positive probabilities that add up to 1.
    negatives : int
    """
    drawn = torch.multinomial(proposal, negatives, replacement=True)
    logits = users @ items[drawn].T - torch.log(proposal[drawn] * negatives)
    logits = logits.masked_fill(drawn == targets[:, None], -torch.inf)
    hit = (users * items[targets]).sum(dim=1, keepdim=True)
    return (torch.logsumexp(torch.cat([hit, logits], dim=1), dim=1) - hit[:, 0]).mean()
