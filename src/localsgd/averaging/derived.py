"""Renews buffers and attributes that a model computes from its weights, after an average.

Spectral norm keeps the leading singular vectors of a weight, fake quantisation a scale from the
observed range, and the older `spectral_norm`, `weight_norm` and pruning keep the weight itself as
an attribute. Their means over workers are not those that belong to the mean weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import _Orthogonal, _SpectralNorm
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

ITERATIONS = 100
"""Iterations of the power method.

The singular value is then right to some percent for any gap to the next one, and to rounding if
there is a gap.
"""


def derived_buffers(model: nn.Module) -> set[str]:
    """The names of buffers without a mean: all workers take worker 0's, then `renew` them."""
    found = set()
    for prefix, module in model.named_modules():
        if isinstance(module, _SpectralNorm):
            names = ["_u", "_v"]
        elif isinstance(module, _Orthogonal):
            names = ["base"]
        elif _quantises(module):
            names = ["scale", "zero_point"]
        else:
            hooks = (h for h in _hooks(module) if isinstance(h, SpectralNorm))
            names = [f"{hook.name}_{vector}" for hook in hooks for vector in "uv"]
        found |= {f"{prefix}.{name}" if prefix else name for name in names}
    return found


@torch.no_grad()
def renew(model: nn.Module) -> None:
    """Recomputes all that is derived from the model's current weights and ranges."""
    for module in model.modules():
        if isinstance(module, ParametrizationList):
            _renew_parametrized(module)
        elif _quantises(module):
            _renew_scale(module)
        for hook in _hooks(module):
            if isinstance(hook, SpectralNorm):
                weight = hook.reshape_weight_to_matrix(getattr(module, f"{hook.name}_orig"))
                u, v = (getattr(module, f"{hook.name}_{vector}") for vector in "uv")
                _leading_vectors(weight, u, v, hook.eps)
    renew_attributes(model)


@torch.no_grad()
def renew_attributes(model: nn.Module) -> None:
    """Recomputes weights kept as attributes, as they may be read before the next forward pass."""
    for module in model.modules():
        for hook in _hooks(module):
            if isinstance(hook, SpectralNorm):
                setattr(module, hook.name, hook.compute_weight(module, do_power_iteration=False))
            elif isinstance(hook, WeightNorm | BasePruningMethod):
                hook(module, None)


def _hooks(module: nn.Module) -> Iterator[Any]:
    return iter(module._forward_pre_hooks.values())


def _renew_parametrized(chain: ParametrizationList) -> None:
    steps = [chain[index] for index in range(len(chain))]
    if not any(isinstance(step, _SpectralNorm) and hasattr(step, "_u") for step in steps):
        return
    if chain.is_tensor:
        values: tuple[Tensor, ...] = (chain.original,)
    else:
        values = tuple(getattr(chain, f"original{index}") for index in range(chain.ntensors))
    for step in steps:
        if isinstance(step, _SpectralNorm) and hasattr(step, "_u"):
            weight = step._reshape_weight_to_matrix(*values)
            _leading_vectors(weight, step._u, step._v, step.eps)
            # As in `forward`, which would iterate further in training mode.
            values = (values[0] / torch.vdot(step._u, torch.mv(weight, step._v)),)
        else:
            values = (step(*values),)


def _leading_vectors(weight: Tensor, u: Tensor, v: Tensor, eps: float) -> None:
    """Writes the leading singular vectors of `weight [h, w]` into `u [h]` and `v [w]`."""
    matrix = weight.to(torch.promote_types(weight.dtype, torch.float32))
    right = v.to(matrix)
    left = u.to(matrix)
    for _ in range(ITERATIONS):
        left = normalize(torch.mv(matrix, right), dim=0, eps=eps)
        right = normalize(torch.mv(matrix.H, left), dim=0, eps=eps)
    u.copy_(left)
    v.copy_(right)


def _quantises(module: nn.Module) -> bool:
    """Whether it is a fake quantisation whose scale comes from an observer (not a learned one)."""
    buffers = module._buffers
    observer = getattr(module, "activation_post_process", None)
    return "scale" in buffers and "zero_point" in buffers and hasattr(observer, "calculate_qparams")


def _renew_scale(module: Any) -> None:
    observer = module.activation_post_process
    lowest = getattr(observer, "min_val", None)
    if not isinstance(lowest, Tensor) or not lowest.numel() or not bool(lowest.isfinite().all()):
        return  # Nothing observed yet, or fixed by hand.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale, zero_point = module.calculate_qparams()
    if scale.shape == module.scale.shape:
        module.scale.copy_(scale)
        module.zero_point.copy_(zero_point)
