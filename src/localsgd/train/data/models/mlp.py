"""A perceptron with one hidden layer: no batch norm, no buffers, quick."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from torch import nn

from localsgd.train.data.task import Task

NAMES = ("mlp",)
WIDTH = 64


def parse(name: str) -> Callable[[Task], nn.Module] | None:
    """`mlp` (64 hidden units) or `mlp-WIDTH`."""
    match = re.fullmatch(r"mlp(?:-([1-9]\d*))?", name)
    if match is None:
        return None
    width = int(match[1] or WIDTH)
    return lambda task: mlp(math.prod(task.input_shape), task.classes, width)


def mlp(inputs: int, classes: int, width: int = WIDTH) -> nn.Sequential:
    """`inputs` numbers, `width` rectified units, `classes` outputs."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, classes),
    )
