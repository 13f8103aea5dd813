"""How both stages descend: AdamW with a warm-up, a linear decay to 0 and clipped gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
    combine : callable, optional
        Called with the parameters between the gradient and the step: adds up the gradients of
        several processes.

    Attributes
    ----------
    steps_done : int
    """

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float,
        weight_decay: float,
        warmup_steps: int,
        steps: int,
        betas: tuple[float, float] = (0.9, 0.999),
        combine: Callable[[Sequence[nn.Parameter]], None] | None = None,
    ) -> None:
        self.steps_done = 0
        self._combine = combine
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

    def step(self, loss: Tensor | None) -> None:
        """Descend along the gradient of `loss`; None where this process has no part of it."""
        self._adam.zero_grad(set_to_none=True)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        if self._combine is not None:
            self._combine(self._parameters)
        nn.utils.clip_grad_norm_(self._parameters, _LONGEST_GRADIENT)
        self._adam.step()
        self._schedule.step()
        self.steps_done += 1

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next steps depend on, besides the parameters."""
        return {"adam": self._adam.state_dict(), "schedule": self._schedule.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what :meth:`state_dict` of an optimiser of the same model returned."""
        self._adam.load_state_dict(state["adam"])
        self._schedule.load_state_dict(state["schedule"])
        self.steps_done = int(state["schedule"]["last_epoch"])
