"""How both stages descend: AdamW with a warm-up, a linear decay to 0 and clipped gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LONGEST_GRADIENT = 1.0


class Optimiser:
    """AdamW over the parameters of a model; biases and other vectors are not decayed.

    Parameters
    ----------
    model : nn.Module
    learning_rate : float
        At its peak.
    weight_decay : float
    warmup_steps : int
        Steps in which the rate rises from 0, linearly.
    steps : int
        In all; the rate falls to 0 over them.
    betas : (float, float)
        Decay of the moments.
    """

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float,
        weight_decay: float,
        warmup_steps: int,
        steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._parameters = list(model.parameters())
        groups = [
            {
                "params": [p for p in self._parameters if p.ndim > 1],
                "weight_decay": weight_decay,
            },
            {"params": [p for p in self._parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._adam = torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._adam,
            lambda step: min(1.0, (step + 1) / (warmup_steps + 1)) * max(1 - step / steps, 0.0),
        )

    def step(self, loss: Tensor) -> None:
        """Descend along the gradient of `loss`."""
        self._adam.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        nn.utils.clip_grad_norm_(self._parameters, _LONGEST_GRADIENT)
        self._adam.step()
        self._schedule.step()
