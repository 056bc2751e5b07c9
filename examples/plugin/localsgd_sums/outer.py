"""An outer optimizer."""

from __future__ import annotations

from functools import partial

import torch

import localsgd


def part_way(share: float = 0.5) -> localsgd.outer.Outer:
    """The anchor moves so much of the way to the mean of the workers."""
    return localsgd.outer.Outer(partial(torch.optim.SGD, lr=share))
