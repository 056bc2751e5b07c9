"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), from the public Python layouts.

N: images · 3,072 = 3 x 32 x 32 bytes of one image, channel by channel, row by row
"""

from __future__ import annotations

import os
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from localsgd.errors import UserError
from localsgd.train.data.task import Card, Defaults
from localsgd.train.data.tasks.augment import crop_and_flip
from localsgd.train.data.tasks.data_folders import advice, data_folders
from localsgd.train.data.tasks.download import Progress, Remote, downloaded
from localsgd.train.data.tasks.entry import Entry, Source
from localsgd.train.data.tasks.images import Images, ImageTask
from localsgd.train.data.tasks.pickles import read_pickle

PAGE = "https://www.cs.toronto.edu/~kriz"
LICENCE = "none stated; A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009"
# Lin et al. (2020), appendix A: 300 epochs, 128 samples a worker, learning rate 0.2, decay 1e-4.
DEFAULTS = Defaults(epochs=300, batch=128, learning_rate=0.2, lr_batch=128, weight_decay=1e-4)


@dataclass(frozen=True)
class Layout:
    """The files of one distribution, with the images in each, and how its labels are called."""

    folder: str
    train: dict[str, int]
    test: dict[str, int]
    label_key: str
    classes: int
    archive: Remote


CIFAR10 = Layout(
    folder="cifar-10-batches-py",
    train={f"data_batch_{i}": 10_000 for i in range(1, 6)},
    test={"test_batch": 10_000},
    label_key="labels",
    classes=10,
    archive=Remote(
        f"{PAGE}/cifar-10-python.tar.gz",
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        bytes=170_498_071,
    ),
)
CIFAR100 = Layout(
    folder="cifar-100-python",
    train={"train": 50_000},
    test={"test": 10_000},
    label_key="fine_labels",
    classes=100,
    archive=Remote(
        f"{PAGE}/cifar-100-python.tar.gz",
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        bytes=169_001_437,
    ),
)


def find(layout: Layout, data_dir: Path | None) -> Path | None:
    """The folder of `layout`: in one of the places, or itself one of them."""
    for place in data_folders(data_dir):
        for folder in (place / layout.folder, place):
            if folder.name == layout.folder and folder.is_dir():
                return folder
    return None


def fetch(layout: Layout, data_dir: Path | None, progress: Progress | None = None) -> Path:
    """Download and unpack the folder of `layout` into the first of the places."""
    place = data_folders(data_dir)[0]
    folder = place / layout.folder
    hint = advice(f"the folder {layout.folder} (unpacked from {layout.archive.url})", data_dir)
    with downloaded(layout.archive, place, hint, progress) as archive:
        unpacked = archive.parent / layout.folder
        try:
            _unpack(archive, unpacked, layout)
            os.rename(unpacked, folder)
        except OSError as error:
            if not folder.is_dir():  # else another process was as fast
                raise UserError(f"{folder} cannot be written ({error}); {hint}") from None
    return folder


def _unpack(archive: Path, folder: Path, layout: Layout) -> None:
    """The files that are needed, by name; nothing else an archive may hold is written."""
    folder.mkdir()
    with tarfile.open(archive) as tar:
        for name in (*layout.train, *layout.test):
            member = tar.extractfile(f"{layout.folder}/{name}")
            assert member is not None, "the checksum has vouched for the contents"
            with member, (folder / name).open("wb") as file:
                shutil.copyfileobj(member, file)


def read(folder: Path, layout: Layout) -> tuple[Images, Images]:
    """Training and test images of a folder, after checks of counts, shapes and ranges.

    Raises:
        UserError: names the file that is missing or damaged, and what was expected.
    """
    return (
        _joined([_read_file(folder / name, size, layout) for name, size in layout.train.items()]),
        _joined([_read_file(folder / name, size, layout) for name, size in layout.test.items()]),
    )


def _read_file(path: Path, size: int, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    if not path.is_file():
        files = ", ".join((*layout.train, *layout.test))
        raise UserError(f"{path} is missing; {path.parent} should hold {files}")
    content = read_pickle(path)
    pixels, labels = content.get("data"), content.get(layout.label_key)
    if not isinstance(pixels, np.ndarray) or pixels.shape != (size, 3072):
        given = pixels.shape if isinstance(pixels, np.ndarray) else "none"
        raise UserError(f"{path} is damaged: expected data of ({size}, 3072) bytes, found {given}")
    if not isinstance(labels, list) or len(labels) != size:
        given = len(labels) if isinstance(labels, list) else "none"
        raise UserError(f"{path} is damaged: expected {size} {layout.label_key}, found {given}")
    if not all(type(label) is int and 0 <= label < layout.classes for label in labels):
        raise UserError(
            f"{path} is damaged: expected {layout.label_key} from 0 to {layout.classes - 1}"
        )
    return pixels.reshape(size, 3, 32, 32), np.array(labels, np.int64)


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> Images:
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels))


def entry(card: Card, layout: Layout, mean: tuple[float, ...], std: tuple[float, ...]) -> Entry:
    """A task with the layout; `mean` and `std` of each channel are those of pixels in 0 to 1."""

    def load(source: Source) -> ImageTask:
        folder = find(layout, source.data_dir)
        folder = folder or fetch(layout, source.data_dir, source.progress)
        train, test = read(folder, layout)
        return ImageTask(
            in_mixed_order=True,
            card=card,
            train=train.to(source.device),
            test=test.to(source.device),
            mean=tuple(255 * m for m in mean),
            std=tuple(255 * s for s in std),
            augment=None if source.augment is False else crop_and_flip,
        )

    return Entry(card, lambda data_dir: find(layout, data_dir), load)


def _card(name: str, title: str, layout: Layout) -> Card:
    return Card(
        name=name,
        title=title,
        classes=layout.classes,
        input_shape=(3, 32, 32),
        train_size=sum(layout.train.values()),
        test_size=sum(layout.test.values()),
        default_model="resnet20",
        defaults=DEFAULTS,
        source=layout.archive.url,
        licence=LICENCE,
    )


CIFAR10_ENTRY = entry(
    _card("cifar10", "CIFAR-10, 32x32 colour", CIFAR10),
    CIFAR10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
CIFAR100_ENTRY = entry(
    _card("cifar100", "CIFAR-100, 32x32 colour", CIFAR100),
    CIFAR100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
