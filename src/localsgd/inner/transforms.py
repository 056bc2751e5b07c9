"""Transforms of a worker's gradient, applied before it is averaged or used in a step.

Shapes: n scalars of a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.errors import UserError

Transform: TypeAlias = Callable[[Tensor, int, int], None]
"""Changes a gradient row `[n]` in place, given the worker and the step."""


@dataclass(frozen=True)
class Clip:
    """Clips a worker's whole gradient to a norm of at most c: g <- g · min(1, c / ||g||).

    Args:
        norm: c.
    """

    norm: float

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise UserError(f"a gradient can't be clipped to a norm of {self.norm}; give one > 0")

    def __call__(self, gradient: Tensor, worker: int, step: int) -> None:
        # As torch.nn.utils.clip_grad_norm_: the same 1e-6, no branch that would wait for a GPU.
        gradient.mul_((self.norm / (gradient.norm() + 1e-6)).clamp(max=1.0))


@dataclass(frozen=True)
class GradientNoise:
    """g <- g + N(0, σ_t²),   σ_t² = η / (1 + t)^γ (Neelakantan et al. 2015; Lin et al. 2020, B.7).

    All workers draw the same noise at a step, so that it is noise of their averaged gradient for
    every H. It depends on seed and step.

    Args:
        eta: η, the variance at the first step.
        gamma: γ, how fast it falls.
        seed: of the run.
    """

    eta: float
    gamma: float = 0.55
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.eta > 0 or not self.gamma >= 0:
            raise UserError(
                f"noise with eta = {self.eta} and gamma = {self.gamma} is not defined; "
                "give eta > 0 and gamma >= 0"
            )

    def variance(self, step: int) -> float:
        """σ_t² at step t, counted from 0."""
        return self.eta / (1 + step) ** self.gamma

    def __call__(self, gradient: Tensor, worker: int, step: int) -> None:
        draw = generator_for(self.seed, "gradient noise", step)
        noise = torch.randn(gradient.shape, generator=draw, dtype=gradient.dtype, device="cpu")
        gradient.add_(noise.to(gradient.device), alpha=self.variance(step) ** 0.5)
