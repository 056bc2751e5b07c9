"""Gradient scaling for an optimizer that declares `_step_supports_amp_scaling`.

Such an optimizer is called at every step, skipped ones too, so that syncs happen on all ranks
whatever one of them found. The scaler sets `grad_scale` (`None` once gradients are unscaled) and
`found_inf` on it for the time of the call.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.reduce.compressor import widest
from localsgd.rows.shards import local

_YES = torch.tensor(True)


def gradients_of(parameters: Iterable[Tensor]) -> Iterator[Tensor]:
    """The values of all gradients that exist, of a `DTensor` those of this rank."""
    for parameter in parameters:
        if parameter.grad is not None:
            yield parameter.grad._values() if parameter.grad.is_sparse else local(parameter.grad)


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


@torch.no_grad()
def unscale(optimizer: Optimizer, scale: Tensor) -> None:
    """Divides the gradients by `scale`, through the same float32 reciprocal as the scaler does."""
    inverse = scale.to(widest(scale.device)).reciprocal().float()
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients_of(parameters_of(optimizer)):
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for (device, _), gradients in alike.items():
        torch._foreach_mul_(gradients, inverse.to(device))


def finite(gradients: Iterable[Tensor]) -> Tensor:
    """Whether all scalars are finite: a scalar tensor on the first gradient's device, unawaited."""
    found = [gradient.isfinite().all() for gradient in gradients]
    return torch.stack([one.to(found[0].device) for one in found]).all() if found else _YES


def all_finite(optimizer: Optimizer) -> bool:
    return bool(finite(gradients_of(parameters_of(optimizer))))
