"""Views of one large image: crops at random, and the square in its middle.

H, W: height and width of an image as it is in its file · S: side of a view, in pixels
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ATTEMPTS = 10
AREA = (0.08, 1.0)
LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))


class Crop(NamedTuple):
    """The random numbers of one image's crop.

    Args:
        shapes: ten candidates, [10, 2]: share of the image's area, and log of width over height.
        place: where in the room that is left the corner lies, [2]: down and across, from 0 to 1.
        flip: whether the view is mirrored.
    """

    shapes: Tensor
    place: Tensor
    flip: bool


def random_crops(count: int, generator: torch.Generator) -> list[Crop]:
    """Random crops for `count` images; the amount drawn depends on `count` alone."""
    numbers = torch.rand((count, 2 * ATTEMPTS + 3), generator=generator, dtype=torch.float64).cpu()
    low = torch.tensor((AREA[0], LOG_RATIO[0]), dtype=torch.float64)
    high = torch.tensor((AREA[1], LOG_RATIO[1]), dtype=torch.float64)
    return [
        Crop(
            low + row[: 2 * ATTEMPTS].view(ATTEMPTS, 2) * (high - low),
            row[-3:-1],
            bool(row[-1] < 0.5),
        )
        for row in numbers
    ]


def drawn(image: Tensor, crop: Crop, side: int) -> Tensor:
    """The view [3, S, S] uint8 of `image` [3, H, W] that `crop` draws.

    The first candidate that fits into the image is taken; if none does, the middle of it, as
    much as ratios from 3/4 to 4/3 allow (as torchvision's RandomResizedCrop, which draws from the
    global random state).
    """
    top, left, height, width = box(image.shape[-2], image.shape[-1], crop)
    view = resized(image[:, top : top + height, left : left + width], side, side)
    return view.flip(-1) if crop.flip else view


def box(rows: int, columns: int, crop: Crop) -> tuple[int, int, int, int]:
    """Top, left, height and width of the crop in an image of `rows` x `columns`."""
    for share, log_ratio in crop.shapes.tolist():
        width = round(math.sqrt(share * rows * columns * math.exp(log_ratio)))
        height = round(math.sqrt(share * rows * columns / math.exp(log_ratio)))
        if 0 < width <= columns and 0 < height <= rows:
            down, across = crop.place.tolist()
            return (
                int(down * (rows - height + 1)),
                int(across * (columns - width + 1)),
                height,
                width,
            )
    least, most = (math.exp(bound) for bound in LOG_RATIO)
    width = min(columns, max(1, round(rows * most)))
    height = min(rows, max(1, round(columns / least)))
    return (rows - height) // 2, (columns - width) // 2, height, width


def central(image: Tensor, side: int) -> Tensor:
    """The middle [3, S, S] of `image` [3, H, W], whose shorter side is made 8/7 S before (256 for
    224).
    """
    rows, columns = image.shape[-2:]
    short = round(side * 8 / 7)
    scale = short / min(rows, columns)
    height, width = (max(short, round(scale * length)) for length in (rows, columns))
    image = resized(image, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    return image[:, top : top + side, left : left + side]


def resized(image: Tensor, height: int, width: int) -> Tensor:
    """`image` uint8 by bilinear interpolation, over all pixels that shrink into one."""
    if image.shape[-2:] == (height, width):
        return image
    pixels = F.interpolate(
        image.unsqueeze(0).float(), (height, width), mode="bilinear", antialias=True
    )
    return pixels.round_().clamp_(0, 255).to(torch.uint8).squeeze(0)
