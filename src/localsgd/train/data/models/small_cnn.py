"""A small convolutional network for images of 8 x 8 to 32 x 32 pixels."""

from __future__ import annotations

import re
from collections.abc import Callable

from torch import nn

from localsgd.train.data.task import Task

NAMES = ("small-cnn", "small-cnn-32")
WIDTH = 16


def parse(name: str) -> Callable[[Task], nn.Module] | None:
    """`small-cnn` (16 channels at first) or `small-cnn-WIDTH`."""
    match = re.fullmatch(r"small-cnn(?:-([1-9]\d*))?", name)
    if match is None:
        return None
    width = int(match[1] or WIDTH)
    return lambda task: small_cnn(task.input_shape[0], task.classes, width)


def small_cnn(channels: int, classes: int, width: int = WIDTH) -> nn.Sequential:
    """Three blocks (3x3 convolution, batch norm, ReLU) of `width`, 2 and 4 times as many channels.

    The image is halved after the first and the second block (8 -> 4 -> 2, 28 -> 14 -> 7,
    32 -> 16 -> 8), averaged after the third, and read by a linear layer. 24,058 parameters with
    width 16, one channel and 10 classes.
    """
    return nn.Sequential(
        *_block(channels, width),
        nn.MaxPool2d(2),
        *_block(width, 2 * width),
        nn.MaxPool2d(2),
        *_block(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def _block(inside: int, width: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inside, width, 3, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(width), nn.ReLU(inplace=True)
