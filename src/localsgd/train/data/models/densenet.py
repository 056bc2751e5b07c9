"""Densely connected networks for small images, as DenseNet-40-12 (Huang et al., 2017).

C: channels of an image · k: the growth rate, channels that a layer adds
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.train.data.task import Task

NAMES = ("densenet40-12", "densenet22-12", "densenet40-4")
BLOCKS = 3


def parse(name: str) -> Callable[[Task], nn.Module] | None:
    """`densenetDEPTH-GROWTH`, for DEPTH = 3n + 4."""
    match = re.fullmatch(r"densenet-?(\d+)-([1-9]\d*)", name)
    if match is None:
        return None
    depth, growth = int(match[1]), int(match[2])
    if depth < 7 or depth % BLOCKS != 1:
        nearest = max(7, BLOCKS * round((depth - 4) / BLOCKS) + 4)
        raise UserError(
            f"unknown model {name!r}: these networks have 3n + 4 layers; "
            f"nearest: densenet{nearest}-{growth}"
        )
    return lambda task: DenseNet(depth, growth, task.input_shape[0], task.classes)


@final
class DenseNet(nn.Module):
    """A 3x3 convolution, three dense blocks of (depth - 4) / 3 layers, mean over the image, linear.

    The first convolution has 2k channels, and every layer adds k to what it reads. Between blocks a
    1x1 convolution keeps the channels and the image is halved: the basic network, without
    bottlenecks, compression or dropout. 1,059,298 parameters with depth 40, k = 12 and 10 classes,
    as in Lin et al. (2020, table of scaling ratios).
    """

    def __init__(self, depth: int, growth: int, channels: int, classes: int) -> None:
        super().__init__()
        inside = 2 * growth
        parts: list[nn.Module] = [nn.Conv2d(channels, inside, 3, padding=1, bias=False)]
        for block in range(BLOCKS):
            if block:
                parts.append(Transition(inside))
            for _ in range((depth - 4) // BLOCKS):
                parts.append(Layer(inside, growth))
                inside += growth
        self.body = nn.Sequential(*parts)
        self.norm = nn.BatchNorm2d(inside)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.body(x)), inplace=True)
        return self.head(x.mean((2, 3)))


@final
class Layer(nn.Module):
    """[B, C, H, W] -> [B, C + k, H, W]: batch norm, ReLU and a 3x3 convolution, beside what came
    in.
    """

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inside)
        self.conv = nn.Conv2d(inside, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x), inplace=True))], 1)


@final
class Transition(nn.Module):
    """Batch norm, ReLU, a 1x1 convolution, and the mean over squares of 2 x 2 pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.norm(x), inplace=True)), 2)
