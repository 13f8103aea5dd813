"""The coarse stage's loss: softmax over the catalogue, in full or over sampled negatives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _FullSoftmax(torch.autograd.Function):
    """Mean cross entropy of ``users @ items.T``, with one (P, N) buffer instead of four."""

    @staticmethod
    def forward(ctx: Any, users: Tensor, items: Tensor, targets: Tensor) -> Tensor:  # noqa: ANN401  # torch has no type for ctx
        logits = users @ items.T  # (P, N)
        at = torch.arange(len(targets), device=targets.device)
        hit = logits[at, targets]
        top = logits.amax(dim=1)
        logits.sub_(top[:, None]).exp_()
        total = logits.sum(dim=1)
        logits.div_(total[:, None])
        logits[at, targets] -= 1.0
        ctx.save_for_backward(logits, users, items)
        return (total.log() + top - hit).mean()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:  # noqa: ANN401  # torch has no type for ctx
        slopes, users, items = ctx.saved_tensors
        scale = gradients[0] / len(users)
        return (slopes @ items) * scale, (slopes.T @ users) * scale, None


def full_softmax(users: Tensor, items: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over the whole catalogue.

    Parameters
    ----------
    users : (P, d)
    items : (N, d)
    targets : (P,) int64
        Row of each positive.
    """
    loss: Tensor = _FullSoftmax.apply(users, items, targets)  # type: ignore[no-untyped-call]  # torch's apply has no types
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
