"""Residual networks for small images: ResNet-8, 14, 20, 32, ... (He et al., 2016, section 4.2)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from localsgd.errors import UserError
from localsgd.train.data.task import Task

NAMES = tuple(f"resnet{n}{s}" for s in ("", "-identity") for n in (8, 14, 20, 32, 44, 56, 110))
WIDTHS = (16, 32, 64)


def parse(name: str) -> Callable[[Task], nn.Module] | None:
    """`resnetN` (projection shortcuts) or `resnetN-identity`, for N = 6n + 2."""
    match = re.fullmatch(r"resnet-?(\d+)(-identity)?", name)
    if match is None:
        return None
    depth, identity = int(match[1]), match[2] is not None
    if depth < 8 or depth % 6 != 2:
        nearest = max(8, 6 * round((depth - 2) / 6) + 2)
        raise UserError(
            f"unknown model {name!r}: these networks have 6n + 2 layers; "
            f"nearest: resnet{nearest}{match[2] or ''}"
        )
    return lambda task: ResNet(depth, task.input_shape[0], task.classes, identity=identity)


@final
class ResNet(nn.Module):
    """A 3x3 convolution, three stages of (depth - 2) / 6 blocks, mean over the image, linear.

    Stages have 16, 32 and 64 channels; the second and third begin with stride 2. Where the shape
    changes, the shortcut is a 1x1 convolution with batch norm (272,474 parameters at depth 20 for
    CIFAR-10, as in Lin et al., 2020), or with `identity` every second pixel and zeros for the new
    channels (269,722; option A of He et al.).
    """

    def __init__(self, depth: int, channels: int, classes: int, *, identity: bool = False) -> None:
        super().__init__()
        self.conv = _conv3x3(channels, WIDTHS[0])
        self.norm = nn.BatchNorm2d(WIDTHS[0])
        blocks: list[nn.Module] = []
        inside = WIDTHS[0]
        for width in WIDTHS:
            for _ in range((depth - 2) // 6):
                blocks.append(Block(inside, width, identity=identity))
                inside = width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inside, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)), inplace=True)
        return self.head(self.blocks(x).mean((2, 3)))


@final
class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut; halves the image if the width changes."""

    def __init__(self, inside: int, width: int, *, identity: bool) -> None:
        super().__init__()
        stride = 1 if inside == width else 2
        self.conv1 = _conv3x3(inside, width, stride)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = _conv3x3(width, width)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inside, width, stride, identity=identity)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


@final
class Thinned(nn.Module):
    """Every `stride`-th pixel, and zeros as the `extra` last channels: no parameters."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


def _shortcut(inside: int, width: int, stride: int, *, identity: bool) -> nn.Module:
    if inside == width:
        return nn.Identity()
    if identity:
        return Thinned(stride, width - inside)
    projection = nn.Conv2d(inside, width, 1, stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(width))


def _conv3x3(inside: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inside, width, 3, stride, padding=1, bias=False)
