"""Local steps along signs: the inner optimizer of local signSGD."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from localsgd.inner.validation import check_momentum, check_not_negative, evaluated


class SignDescent(Optimizer):
    """An optimizer whose steps have the same length in every scalar.

        d <- g + λ w,   v <- m v + d,   w <- w - γ sign(v),  or sign(d + m v) with Nesterov

    (Lin et al. 2020, Algorithm 3; Bernstein et al. 2018 with m = 0.) sign(0) = 0, so that scalars
    without a gradient do not move.

    Args:
        params: as for any optimizer.
        lr: γ, the length of a step in each scalar.
        momentum: m.
        weight_decay: λ.
        nesterov: use Nesterov momentum.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        check_not_negative(lr=lr, weight_decay=weight_decay)
        check_momentum(momentum)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "nesterov": nesterov and momentum > 0,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = evaluated(closure)
        for group in self.param_groups:
            momentum = group["momentum"]
            for w in group["params"]:
                if w.grad is None:
                    continue
                direction = w.grad.add(w, alpha=group["weight_decay"])
                if momentum:
                    state = self.state[w]
                    if "momentum_buffer" not in state:
                        state["momentum_buffer"] = torch.zeros_like(w)
                    velocity = state["momentum_buffer"].mul_(momentum).add_(direction)
                    if group["nesterov"]:
                        direction.add_(velocity, alpha=momentum)
                    else:
                        direction = velocity.clone()
                w.sub_(direction.sign_(), alpha=group["lr"])
        return loss
