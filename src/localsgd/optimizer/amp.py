"""What `torch.amp.GradScaler` leaves to an optimizer that declares `_step_supports_amp_scaling`.

Such an optimizer is called at every step, skipped ones too, so that agreements happen on all ranks
whatever one of them found. The scaler sets `grad_scale` (`None` once gradients are unscaled) and
`found_inf` on it for the time of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer


def gradients_of(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    """The values of all gradients that there are."""
    for parameter in parameters:
        if parameter.grad is not None:
            yield parameter.grad._values() if parameter.grad.is_sparse else parameter.grad


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


@torch.no_grad()
def unscale(optimizer: Optimizer, scale: Tensor) -> None:
    """Divides the gradients by `scale`, through the same float32 reciprocal as the scaler does."""
    inverse = scale.double().reciprocal().float()
    for gradient in gradients_of(parameters_of(optimizer)):
        gradient.mul_(inverse.to(gradient.device))


def all_finite(optimizer: Optimizer) -> bool:
    return all(
        bool(gradient.isfinite().all()) for gradient in gradients_of(parameters_of(optimizer))
    )
