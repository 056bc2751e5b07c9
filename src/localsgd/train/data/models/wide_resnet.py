"""Wide residual networks for small images, as WideResNet-28-10 (Zagoruyko and Komodakis, 2016)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.train.data.task import Task

NAMES = ("wrn28-10", "wrn16-4", "wrn10-1")
BASE = 16


def parse(name: str) -> Callable[[Task], nn.Module] | None:
    """`wrnDEPTH-WIDTH`, for DEPTH = 6n + 4."""
    match = re.fullmatch(r"wrn-?(\d+)-([1-9]\d*)", name)
    if match is None:
        return None
    depth, width = int(match[1]), int(match[2])
    if depth < 10 or depth % 6 != 4:
        nearest = max(10, 6 * round((depth - 4) / 6) + 4)
        raise UserError(
            f"unknown model {name!r}: these networks have 6n + 4 layers; "
            f"nearest: wrn{nearest}-{width}"
        )
    return lambda task: WideResNet(depth, width, task.input_shape[0], task.classes)


@final
class WideResNet(nn.Module):
    """A 3x3 convolution, three stages of (depth - 4) / 6 blocks, mean over the image, linear.

    Stages have 16, 32 and 64 times `width` channels; the second and third begin with stride 2. No
    dropout, as in Lin et al. (2020): 36,479,194 parameters with depth 28, width 10 and 10 classes.
    """

    def __init__(self, depth: int, width: int, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = _conv3x3(channels, BASE)
        blocks: list[nn.Module] = []
        inside = BASE
        for stage in range(3):
            for block in range((depth - 4) // 6):
                stride = 2 if stage and not block else 1
                blocks.append(Block(inside, BASE * width * 2**stage, stride))
                inside = BASE * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inside)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.conv(x))), inplace=True)
        return self.head(x.mean((2, 3)))


@final
class Block(nn.Module):
    """Batch norm, ReLU and a 3x3 convolution, twice, beside a shortcut.

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input; elsewhere it
    is the input as it came.
    """

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inside)
        self.conv1 = _conv3x3(inside, width, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width)
        same = inside == width and stride == 1
        self.shortcut = None if same else nn.Conv2d(inside, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x), inplace=True)
        beside = x if self.shortcut is None else self.shortcut(active)
        y = self.conv2(F.relu(self.norm2(self.conv1(active)), inplace=True))
        return y + beside


def _conv3x3(inside: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
