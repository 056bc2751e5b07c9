"""What is left of a worker whose weights were not finite."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.optimizer.together import Together


def go_on_from_mean(together: Together, inner: Optimizer, goes_on: bool) -> None:
    """Some workers were left out of the mean that all hold now. All say so.

    Args:
        goes_on: whether this is no error.
    """
    if together.tell_of_not_finite(goes_on):
        clear_not_finite(inner)


@torch.no_grad()
def clear_not_finite(optimizer: Optimizer) -> None:
    """Zeroes what is not finite in the optimizer's state: the next steps would be so again."""
    for state in optimizer.state.values():
        for value in state.values():
            if isinstance(value, Tensor) and value.is_floating_point():
                value.masked_fill_(~value.isfinite(), 0)
