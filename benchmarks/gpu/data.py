"""CIFAR-10, or a part of it, in one file that travels; and batches of all workers at once.

N: images · K: workers · B: images of a worker's batch
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.errors import UserError
from localsgd.train.data import tasks
from localsgd.train.data.sampling.order import Order
from localsgd.train.data.tasks.augment import crop_and_flip
from localsgd.train.data.tasks.images import Images, ImageTask, balanced

MEAN = tuple(255 * value for value in (0.4914, 0.4822, 0.4465))
STD = tuple(255 * value for value in (0.2470, 0.2435, 0.2616))
PARTS = ("train", "test")


def pack(task: ImageTask, path: Path, train: int, test: int) -> int:
    """Writes so many images of each part, spread evenly over the classes; all for 0. The file's
    bytes.
    """
    arrays = {}
    for name, images, count in (("train", task.train, train), ("test", task.test, test)):
        chosen = torch.arange(len(images.labels))
        if count:
            chosen = balanced(images.labels, count, task.classes, seed=0)
        arrays[f"{name}_pixels"] = images.pixels[chosen].numpy()
        arrays[f"{name}_labels"] = images.labels[chosen].to(torch.uint8).numpy()
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path.stat().st_size


def unpack(path: Path, device: torch.device) -> ImageTask:
    """The data that `pack` has written, on `device`, cropped and flipped in training."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            parts = [
                Images(
                    torch.from_numpy(arrays[f"{name}_pixels"]),
                    torch.from_numpy(arrays[f"{name}_labels"]).long(),
                )
                for name in PARTS
            ]
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} is no packed data: {error}; make it with pack") from None
    return _task(*(images.to(device) for images in parts))


def noise(samples: int, device: torch.device) -> ImageTask:
    """Random images, which are enough to measure time."""
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (samples, 3, 32, 32), generator=draw, dtype=torch.uint8)
    images = Images(pixels, torch.randint(0, 10, (samples,), generator=draw)).to(device)
    return _task(images, images)


def _task(train: Images, test: Images) -> ImageTask:
    card = replace(tasks.card("cifar10"), train_size=len(train.labels), test_size=len(test.labels))
    return ImageTask(card=card, train=train, test=test, mean=MEAN, std=STD, augment=crop_and_flip)


class Feed:
    """The batches of K workers for one step, always in the same memory.

    As in the trainer, but augmented all at once, with the chance of the step instead of the
    worker's.

    Args:
        task: whose training images.
        workers, batch: K and B.
        channels_last: the images' memory format.
        seed: of order and augmentation.
    """

    def __init__(
        self, task: ImageTask, workers: int, batch: int, *, channels_last: bool, seed: int = 0
    ) -> None:
        self.order = Order(task.train_size, workers, batch, seed)
        self._task = task
        self._seed = seed
        layout = torch.channels_last if channels_last else torch.contiguous_format
        x, y = task.train_batch(torch.zeros(workers * batch, dtype=torch.long), None)
        self._x, self._y = x.contiguous(memory_format=layout), y
        self.fill(0)

    def fill(self, step: int) -> None:
        """Copies the batches of `step` into the memory."""
        order, draw = self.order, generator_for(self._seed, "augment", step)
        indices = torch.cat([order.indices(worker, step) for worker in range(order.workers)])
        x, y = self._task.train_batch(indices, draw)
        self._x.copy_(x)
        self._y.copy_(y)

    def batch(self, worker: int) -> tuple[Tensor, Tensor]:
        """Images `[B, 3, 32, 32]` and labels `[B]` of one worker."""
        own = slice(worker * self.order.batch, (worker + 1) * self.order.batch)
        return self._x[own], self._y[own]
