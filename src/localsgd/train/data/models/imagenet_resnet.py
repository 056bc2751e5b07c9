"""Residual networks with bottlenecks for large images, as ResNet-50 (He et al., 2016, table 1)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.train.data.task import Task

NAMES = ("imagenet-resnet50", "imagenet-resnet50-16")
WIDTH = 64
EXPANSION = 4
STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks of each stage, by depth."""


def parse(name: str) -> Callable[[Task], nn.Module] | None:
    """`imagenet-resnetDEPTH` (64 channels at first) or `imagenet-resnetDEPTH-WIDTH`."""
    match = re.fullmatch(r"imagenet-resnet(\d+)(?:-([1-9]\d*))?", name)
    if match is None:
        return None
    depth, width = int(match[1]), int(match[2] or WIDTH)
    if depth not in STAGES:
        nearest = min(STAGES, key=lambda known: abs(known - depth))
        raise UserError(
            f"unknown model {name!r}: these networks have {', '.join(map(str, STAGES))} layers; "
            f"nearest: imagenet-resnet{nearest}"
        )
    return lambda task: ImageNetResNet(STAGES[depth], task.input_shape[0], task.classes, width)


@final
class ImageNetResNet(nn.Module):
    """A 7x7 convolution and pooling, four stages of bottlenecks, mean over the image, linear.

    An image of 224 x 224 pixels is 56 x 56 when the first stage gets it; each later stage begins
    with stride 2, at its 3x3 convolution (Goyal et al., 2017). 25,557,032 parameters with depth 50,
    width 64 and 1,000 classes.
    """

    def __init__(
        self, stages: tuple[int, ...], channels: int, classes: int, width: int = WIDTH
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 7, 2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        inside = width
        for stage, count in enumerate(stages):
            for block in range(count):
                stride = 2 if stage and not block else 1
                blocks.append(Bottleneck(inside, width * 2**stage, stride))
                inside = EXPANSION * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        x = F.max_pool2d(x, 3, 2, padding=1)
        return self.head(self.blocks(x).mean((2, 3)))


@final
class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the last has four times the channels."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = EXPANSION * width
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outside, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outside)
        self.shortcut = _shortcut(inside, outside, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        return F.relu(self.norm3(self.conv3(y)) + self.shortcut(x), inplace=True)


def _shortcut(inside: int, outside: int, stride: int) -> nn.Module:
    if inside == outside and stride == 1:
        return nn.Identity()
    projection = nn.Conv2d(inside, outside, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(outside))
