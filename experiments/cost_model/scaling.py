"""How much a model computes for what it sends: the scaling ratio, counted, not typed in.

The ratio of operations for one sample to parameters (You, Gitman, Ginsburg, Scaling SGD batch size
to 32K for ImageNet training, 2017; Lin et al., 2020, Table scaling_ratio_model). Where it is small,
communication weighs more, and local SGD saves more.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from localsgd.train.data.models import count_operations


@dataclass(frozen=True)
class Size:
    """A model in numbers.

    Args:
        parameters: scalars that are averaged.
        multiplications: multiply-adds of the forward pass of one sample.
    """

    parameters: int
    multiplications: int

    @property
    def ratio(self) -> float:
        """Multiply-adds for each parameter."""
        return self.multiplications / self.parameters


def size_of(model: nn.Module, input_shape: Sequence[int]) -> Size:
    """Counts a model by passing one sample through a copy of it that holds no data.

    Args:
        model: in any mode, on any device; it is left as it is.
        input_shape: of one sample, such as (3, 32, 32).
    """
    hollow = copy.deepcopy(model).to("meta")
    sample = torch.empty(1, *input_shape, device="meta")
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Size(parameters, count_operations(hollow, sample))
