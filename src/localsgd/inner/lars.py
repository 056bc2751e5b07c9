"""LARS and LARC: SGD with a separate learning rate for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.inner.validation import check_momentum, check_not_negative, evaluated


class LARS(Optimizer):
    """SGD with momentum whose step of each tensor is proportional to the tensor's norm.

        r <- η ||w|| / (||g|| + λ ||w||),   v <- m v + γ r (g + λ w),   w <- w - v

    (You, Gitman, Ginsburg 2017, Algorithm 1.) The trust ratio and γ are applied before momentum.
    Tensors with one dimension (biases, batch norm) have r = 1 and no weight decay; those whose w or
    g is zero have r = 1.

    `clip=True` is LARC: r <- min(r/γ, 1), so that γ r is never more than γ.

    Args:
        params: as for any optimizer.
        lr: γ.
        momentum: m.
        weight_decay: λ.
        trust: η.
        clip: LARC instead of LARS.
        adapt_vectors: treat tensors with one dimension like the others.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        clip: bool = False,
        adapt_vectors: bool = False,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay, trust=trust)
        check_momentum(momentum)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "clip": clip,
            "adapt_vectors": adapt_vectors,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = evaluated(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(parameter, parameter.grad, group)
        return loss

    def _step(self, w: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        adapted = w.dim() > 1 or group["adapt_vectors"]
        decay = group["weight_decay"] if adapted else 0.0
        direction = gradient.add(w, alpha=decay)
        rate: float | Tensor = group["lr"]
        if adapted:
            rate = rate * self._ratio(w, gradient, decay, group)
        direction.mul_(rate)
        if group["momentum"]:
            state = self.state[w]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(w)
            direction = state["momentum_buffer"].mul_(group["momentum"]).add_(direction)
        w.sub_(direction)

    @staticmethod
    def _ratio(w: Tensor, gradient: Tensor, decay: float, group: dict[str, Any]) -> Tensor:
        weight, slope = w.norm(), gradient.norm()
        ratio = group["trust"] * weight / (slope + decay * weight)
        ratio = torch.where((weight > 0) & (slope > 0), ratio, torch.ones_like(ratio))
        if group["clip"] and group["lr"] > 0:
            ratio = torch.where(
                (weight > 0) & (slope > 0), (ratio / group["lr"]).clamp(max=1.0), ratio
            )
        return ratio
