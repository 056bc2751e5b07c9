"""Classification of large images that stay in files: a folder of JPEGs for each class.

Layout: ROOT/train/CLASS/*.JPEG and ROOT/val/CLASS/*.JPEG, the classes numbered by name. What tools
leave behind there is passed over: names that begin with a dot, as .ipynb_checkpoints and ._0.JPEG,
or with @ or #, as @eaDir and #recycle, and __MACOSX, lost+found and the like.

N: images · B: images of a batch · S: side of what a model sees, in pixels
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data.task import Task
from localsgd.train.data.tasks.crops import central, drawn, random_crops
from localsgd.train.data.tasks.images import balanced

TRAIN, TEST = "train", "val"
SUFFIXES = frozenset({".jpeg", ".jpg"})
LITTER = frozenset(
    {"__MACOSX", "__pycache__", "lost+found", "$RECYCLE.BIN", "System Volume Information"}
)
"""Folders of tools and file systems."""
THREADS = 16
"""At most so many images are decoded at once."""

Decode = Callable[[Path], Tensor]
"""A file -> an image [3, H, W] uint8."""


@dataclass(frozen=True)
class Files:
    """Images by their files, and labels [N] int64."""

    paths: tuple[Path, ...]
    labels: Tensor

    def at(self, indices: Tensor) -> Files:
        """Those of `indices` [n], in their order."""
        paths = tuple(self.paths[index] for index in indices.tolist())
        return Files(paths, self.labels[indices])

    def shuffled(self) -> Files:
        """All in an order that is the same every time, so that any stretch has all classes.

        Statistics of batch norm are re-estimated on the first images, a few hundred at a time: by
        name, these would be of a few classes, and those of a batch of a single one.
        """
        order = np.random.RandomState(0).permutation(len(self.paths))
        return self.at(torch.from_numpy(order))


def find_files(folder: Path, classes: tuple[str, ...]) -> Files:
    """The JPEGs of each of `classes` in `folder`, by name.

    Raises:
        UserError: names the folder that is missing or empty, or holds other classes.
    """
    found = class_names(folder)
    if found != classes:
        odd = sorted(set(found) ^ set(classes))
        raise UserError(
            f"{folder} has other classes than {TRAIN}/, such as {odd[0]!r}; "
            "give each class a folder of the same name in both"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        with os.scandir(folder / name) as entries:
            names = sorted(entry.name for entry in entries if _is_image(entry))
        if not names:
            raise UserError(f"{folder / name} holds no JPEGs; fill it or remove it")
        paths += [folder / name / file for file in names]
        labels += [label] * len(names)
    return Files(tuple(paths), torch.tensor(labels, dtype=torch.int64))


def class_names(folder: Path) -> tuple[str, ...]:
    """The folders in `folder`, by name."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} is missing; {folder.parent} should hold {TRAIN}/CLASS/*.JPEG and "
            f"{TEST}/CLASS/*.JPEG"
        )
    with os.scandir(folder) as entries:
        found = tuple(sorted(entry.name for entry in entries if _is_class(entry)))
    if not found:
        raise UserError(f"{folder} holds no folders; sort its images into one for each class")
    return found


def _is_class(entry: os.DirEntry[str]) -> bool:
    return not _is_litter(entry.name) and _or_refused(entry, entry.is_dir)


def _is_image(entry: os.DirEntry[str]) -> bool:
    wanted = Path(entry.name).suffix.lower() in SUFFIXES and not _is_litter(entry.name)
    return wanted and _or_refused(entry, entry.is_file)


def _is_litter(name: str) -> bool:
    return name.startswith((".", "@", "#")) or name in LITTER


def _or_refused(entry: os.DirEntry[str], ask: Callable[[], bool]) -> bool:
    try:
        return ask()
    except OSError as error:  # as of a link to itself
        raise UserError(f"{entry.path}: {error.strerror}; remove it or put it right") from None


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class ImageFolderTask(Task):
    """Images that are decoded when a batch needs them, judged as `ImageTask` does.

    Training: a crop of 8 to 100 % of the image with sides of ratio 3/4 to 4/3, made S x S, and a
    horizontal flip (Szegedy et al., 2015; Goyal et al., 2017). Without a generator, and for the
    test set: the shorter side made 8/7 S, the S x S square in the middle. Inputs are
    `(pixel - mean) / std`.

    Args:
        mean: [3, 1, 1] by channel, or [3, S, S] by pixel, of pixels from 0 to 255.
        std: [3, 1, 1].
        decode: reads a file.
        augment: whether training images are cropped at random and flipped.
        device: of batches.
    """

    train: Files
    test: Files
    mean: Tensor
    std: Tensor
    decode: Decode
    augment: bool = True
    device: torch.device | str = "cpu"

    @property
    def labels(self) -> Tensor:
        return self.train.labels

    @property
    def side(self) -> int:
        """S."""
        return self.input_shape[-1]

    def train_batch(
        self, indices: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        if generator is None or not self.augment:
            return self._batch(self.train, indices)
        crops = random_crops(len(indices), generator)
        views = [partial(drawn, crop=crop, side=self.side) for crop in crops]
        return self._batch(self.train, indices, views)

    def test_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self._batch(self.test, indices)

    def _batch(
        self,
        files: Files,
        indices: Tensor,
        views: list[Callable[[Tensor], Tensor]] | None = None,
    ) -> tuple[Tensor, Tensor]:
        views = views or [partial(central, side=self.side)] * len(indices)
        paths = [files.paths[index] for index in indices.tolist()]
        images = self._pool.map(lambda path, view: view(self.decode(path)), paths, views)
        pixels = torch.stack(list(images)).to(self.device).float()
        labels = files.labels[indices].to(self.device)
        return pixels.sub_(self.mean).div_(self.std), labels

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), "decoding")

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(1) == target).sum()

    def mixed(self, count: int) -> Tensor:
        """As they lie: files are shuffled when they are found."""
        return torch.arange(count)

    @property
    def judged_together(self) -> int:
        return 100

    def subset(self, train: int, seed: int = 0) -> ImageFolderTask:
        """`train` training images, as many of each class as of any other (give or take one)."""
        chosen = balanced(self.train.labels, train, self.classes, seed)
        card = replace(self.card, train_size=train)
        return replace(self, card=card, train=self.train.at(chosen))


def pillow_decode() -> Decode:
    """Decodes by Pillow, whatever a file holds, in RGB; ImageNet has a PNG and CMYK files too.

    Raises:
        UserError: it is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise UserError(
            "images in files need Pillow, which is not installed: pip install 'localsgd[cli]', "
            "or choose another task"
        ) from None

    def decode(path: Path) -> Tensor:
        try:
            with Image.open(path) as image:
                pixels = np.array(image.convert("RGB"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} is no readable image ({reason})") from None
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    return decode
