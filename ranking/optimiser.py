"""How both stages descend: AdamW with a warm-up, a linear decay to 0 and clipped gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
        self._peak = learning_rate
        self._warmup_steps = warmup_steps
        self._steps = steps
        self._adam = torch.optim.AdamW(groups, lr=learning_rate, betas=betas, fused=True)

    def step(self, loss: Tensor | None) -> None:
        """Descend along the gradient of `loss`; None where this process has no part of it."""
        self._adam.zero_grad(set_to_none=True)
        if loss is not None:
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
        if self._combine is not None:
            self._combine(self._parameters)
        nn.utils.clip_grad_norm_(self._parameters, _LONGEST_GRADIENT)
        rise = min(1.0, (self.steps_done + 1) / (self._warmup_steps + 1))
        for group in self._adam.param_groups:
            group["lr"] = self._peak * rise * max(1 - self.steps_done / self._steps, 0.0)
        self._adam.step()
        self.steps_done += 1

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that the next steps depend on, besides the parameters."""
        state = {
            f"{at}.{name}": value
            for at, of_parameter in self._adam.state_dict()["state"].items()
            for name, value in of_parameter.items()
        }
        return {"steps_done": torch.tensor(self.steps_done), **state}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take what :meth:`state_dict` of an optimiser of the same model returned."""
        by_parameter: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            at, _, name = key.partition(".")
            if name:
                by_parameter.setdefault(int(at), {})[name] = value
        groups = self._adam.state_dict()["param_groups"]
        self._adam.load_state_dict({"state": by_parameter, "param_groups": groups})
        self.steps_done = int(state["steps_done"])
