"""Classification of small images that are held as tensors.

N: images · B: images of a batch · C, H, W: channels, height, width
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data.task import Task

Augment = Callable[[Tensor, torch.Generator], Tensor]
"""uint8 images [B, C, H, W] and a source of chance -> uint8 images of the same shape."""


class Images(NamedTuple):
    """Pixels [N, C, H, W] uint8 and labels [N] int64."""

    pixels: Tensor
    labels: Tensor

    def to(self, device: torch.device | str) -> Images:
        return Images(self.pixels.to(device), self.labels.to(device))


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ImageTask(Task):
    """Images with one label each, judged by mean cross-entropy and by the most likely class.

    Inputs are `(pixel - mean) / std` for each channel, with `mean` and `std` in units of a pixel.

    Args:
        train, test: images and labels.
        mean, std: by channel.
        augment: what training does to images before.
        in_mixed_order: whether training images of all classes lie in mixed order.
    """

    train: Images
    test: Images
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: Augment | None = None
    in_mixed_order: bool = False

    def __post_init__(self) -> None:
        for part, size in ((self.train, self.train_size), (self.test, self.test_size)):
            if part.pixels.shape != (size, *self.input_shape) or part.labels.shape != (size,):
                raise ValueError(f"{self.name}: {tuple(part.pixels.shape)} pixels for {self.card}")

    @property
    def labels(self) -> Tensor:
        return self.train.labels

    def mixed(self, count: int) -> Tensor:
        """As they lie, if that is in mixed order."""
        return torch.arange(count) if self.in_mixed_order else super().mixed(count)

    def train_batch(
        self, indices: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        pixels, labels = _take(self.train, indices)
        if generator is not None and self.augment is not None:
            pixels = self.augment(pixels, generator)
        return self._normalised(pixels), labels

    def test_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        pixels, labels = _take(self.test, indices)
        return self._normalised(pixels), labels

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(1) == target).sum()

    def subset(self, train: int, seed: int = 0) -> ImageTask:
        """`train` training images, as many of each class as of any other (give or take one)."""
        chosen = balanced(self.train.labels, train, self.classes, seed)
        card = replace(self.card, train_size=train)
        return replace(self, card=card, train=Images(*_take(self.train, chosen)))

    def _normalised(self, pixels: Tensor) -> Tensor:
        mean, std = self._statistics
        return pixels.to(torch.float32).sub_(mean).div_(std)

    @cached_property
    def _statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and deviation [C, 1, 1] where the images are, so that no batch has to send them."""
        values = torch.tensor((self.mean, self.std), device=self.train.pixels.device)
        mean, std = values.view(2, -1, 1, 1)
        return mean, std


def balanced(labels: Tensor, count: int, classes: int, seed: int) -> Tensor:
    """Indices, in rising order, of `count` samples spread evenly over the classes.

    The draw is NumPy's `RandomState`, whose stream is frozen, so that a subset is the same one
    with every version of every library.
    """
    members = [np.flatnonzero(labels.cpu().numpy() == c) for c in range(classes)]
    sizes = [len(m) for m in members]
    most = min(sizes) * classes + sizes.index(min(sizes))
    if not 1 <= count <= most:
        raise UserError(
            f"a class-balanced subset of {count:,} samples cannot be taken; 1 to {most:,} can"
        )
    share, extra = divmod(count, classes)
    chance = np.random.RandomState(seed)
    drawn = [chance.permutation(m)[: share + (c < extra)] for c, m in enumerate(members)]
    return torch.from_numpy(np.sort(np.concatenate(drawn)))


def _take(images: Images, indices: Tensor) -> tuple[Tensor, Tensor]:
    indices = indices.to(images.labels.device, non_blocking=True)
    return images.pixels[indices], images.labels[indices]
