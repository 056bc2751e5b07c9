"""Cleans the optimizer of a worker whose weights were not finite."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer


@torch.no_grad()
def clear_not_finite(optimizer: Optimizer) -> None:
    """Sets values of the optimizer's state that are not finite to 0, as they would spread again."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor) and value.is_floating_point():
                value.masked_fill_(~value.isfinite(), 0)
