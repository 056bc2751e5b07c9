"""What happens to the mean update at an agreement: names for `torch.optim` partials.

The outer optimizer works on the anchor and is fed the mean update as its gradient. `average` is no
optimizer at all: the anchor becomes the mean of the members, which is what `SGD(lr=1)` gives,
without an anchor to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from localsgd.errors import UserError


@dataclass(frozen=True)
class Outer:
    """An outer optimizer for the anchor of a level.

    Args:
        optimizer: from a list of parameters to a `torch.optim.Optimizer`, usually a
            `functools.partial`.
        per_learning_rate: feed it mean update / γ and scale its learning rate by γ, the inner
            learning rate at the first step of the round, so that its state is in units of gradients
            and stays right while γ changes.
    """

    optimizer: Callable[[Any], Optimizer]
    per_learning_rate: bool = False


average: None = None
"""Plain averaging: the anchor becomes the mean of the members."""


def sgd(learning_rate: float = 1.0, momentum: float = 0.0, nesterov: bool = False) -> Outer:
    """w ← w − η u with u ← m u + mean Δ: outer SGD on the mean update Δ."""
    _check_momentum(momentum)
    if nesterov and not momentum:
        raise UserError("Nesterov looks ahead by the momentum, which is 0; give one in (0, 1)")
    return Outer(partial(torch.optim.SGD, lr=learning_rate, momentum=momentum, nesterov=nesterov))


def block_momentum(momentum: float) -> Outer:
    """Global momentum:

    u ← m u + mean Δ/γ, w ← w − γ u, γ of the round's first step (Lin et al. 2020, appendix B.4.1).
    """
    _check_momentum(momentum)
    return Outer(partial(torch.optim.SGD, lr=1.0, momentum=momentum), per_learning_rate=True)


def _check_momentum(momentum: float) -> None:
    if not 0 <= momentum < 1:
        raise UserError(f"an outer momentum of {momentum} grows without bound; give one in [0, 1)")
