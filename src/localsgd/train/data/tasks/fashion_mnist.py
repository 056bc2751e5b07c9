"""Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), from its four idx files, plain or gzipped."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch

from localsgd.errors import UserError
from localsgd.train.data.task import Card, Defaults
from localsgd.train.data.tasks.augment import crop_and_flip
from localsgd.train.data.tasks.data_folders import advice, data_folders
from localsgd.train.data.tasks.download import Progress, Remote, downloaded
from localsgd.train.data.tasks.entry import Entry, Source
from localsgd.train.data.tasks.idx import read_idx
from localsgd.train.data.tasks.images import Images, ImageTask

BUCKET = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FOLDER = "fashion-mnist"
# Our own folder, torchvision's, and files that lie in the place itself.
FOLDERS = (FOLDER, "FashionMNIST/raw", ".")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")

REMOTES = (
    Remote(
        f"{BUCKET}/train-images-idx3-ubyte.gz",
        sha256="3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        bytes=26_421_880,
    ),
    Remote(
        f"{BUCKET}/train-labels-idx1-ubyte.gz",
        sha256="a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        bytes=29_515,
    ),
    Remote(
        f"{BUCKET}/t10k-images-idx3-ubyte.gz",
        sha256="346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        bytes=4_422_102,
    ),
    Remote(
        f"{BUCKET}/t10k-labels-idx1-ubyte.gz",
        sha256="67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        bytes=5_148,
    ),
)
CARD = Card(
    name="fashion-mnist",
    title="Fashion-MNIST, 28x28 grey",
    classes=10,
    input_shape=(1, 28, 28),
    train_size=60_000,
    test_size=10_000,
    default_model="small-cnn",
    defaults=Defaults(epochs=30, batch=64, learning_rate=0.05, lr_batch=64, weight_decay=5e-4),
    source=f"{BUCKET} or Debian's package dataset-fashion-mnist",
    licence="MIT; H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST, arXiv:1708.07747, 2017",
)
# Mean and deviation of the training pixels, in units of a pixel.
MEAN, STD = (72.9404,), (90.0212,)
# Zeros to nines in MNIST's training set, whose files have the same names and sizes.
MNIST_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)


def find(data_dir: Path | None) -> Path | None:
    """The nearest folder with all four files, each plain or gzipped; Debian's comes last."""
    folders = [place / folder for place in data_folders(data_dir) for folder in FOLDERS]
    for folder in (*folders, DEBIAN):
        if all(_there(folder, remote.file) for remote in REMOTES):
            return folder
    return None


def fetch(
    remotes: tuple[Remote, ...], data_dir: Path | None, progress: Progress | None = None
) -> Path:
    """Download the files that are missing into `fashion-mnist/` in the first of the places."""
    folder = data_folders(data_dir)[0] / FOLDER
    for remote in remotes:
        if not _there(folder, remote.file):
            hint = advice(f"{FOLDER}/ with {', '.join(r.file for r in remotes)}", data_dir)
            with downloaded(remote, folder, hint, progress) as path:
                os.replace(path, folder / remote.file)
    return folder


def read(folder: Path, train_size: int, test_size: int) -> tuple[Images, Images]:
    """Training and test images of a folder, after checks of counts, shapes and ranges."""
    train = _read_part(folder, "train", train_size)
    test = _read_part(folder, "t10k", test_size)
    if tuple(torch.bincount(train.labels).tolist()) == MNIST_COUNTS:
        raise UserError(
            f"{folder} holds MNIST's digits, whose files are named alike; expected Fashion-MNIST"
        )
    return train, test


def load(source: Source) -> ImageTask:
    """60,000 training and 10,000 test images; crops and flips only if they are asked for."""
    folder = find(source.data_dir) or fetch(REMOTES, source.data_dir, source.progress)
    train, test = read(folder, CARD.train_size, CARD.test_size)
    return ImageTask(
        in_mixed_order=True,
        card=CARD,
        train=train.to(source.device),
        test=test.to(source.device),
        mean=MEAN,
        std=STD,
        augment=crop_and_flip if source.augment else None,
    )


def _there(folder: Path, gzipped: str) -> Path | None:
    for name in (gzipped.removesuffix(".gz"), gzipped):
        if (folder / name).is_file():
            return folder / name
    return None


def _read_part(folder: Path, part: str, size: int) -> Images:
    pixels = read_idx(_path(folder, f"{part}-images-idx3-ubyte.gz"), (size, 28, 28))
    path = _path(folder, f"{part}-labels-idx1-ubyte.gz")
    labels = read_idx(path, (size,))
    if labels.max() >= CARD.classes:
        raise UserError(f"{path} is damaged: expected labels from 0 to 9, found {labels.max()}")
    return Images(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels.astype(np.int64)))


def _path(folder: Path, gzipped: str) -> Path:
    return _there(folder, gzipped) or folder / gzipped


ENTRY = Entry(CARD, find, load)
