"""ImageNet-1k (Russakovsky et al., 2015), and any folder of JPEGs in its layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data.task import Card, Defaults
from localsgd.train.data.tasks.data_folders import advice, data_folders
from localsgd.train.data.tasks.entry import Entry, Source
from localsgd.train.data.tasks.image_folder import (
    TEST,
    TRAIN,
    Decode,
    ImageFolderTask,
    class_names,
    find_files,
    pillow_decode,
)

FOLDER = "imagenet"
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Mean and deviation of ImageNet's training images by channel, for pixels from 0 to 255."""
MEAN_SAMPLES = 10_000
"""Most training images from which the mean of each pixel is taken."""
CARD = Card(
    name="imagenet",
    title="ImageNet-1k or a folder in its layout, 224x224",
    classes=1000,
    input_shape=(3, 224, 224),
    train_size=1_281_167,
    test_size=50_000,
    default_model="imagenet-resnet50",
    # Lin et al. (2020), appendix, after Goyal et al. (2017), whose weight decay it is.
    defaults=Defaults(
        epochs=90,
        batch=128,
        learning_rate=0.1,
        lr_batch=256,
        weight_decay=1e-4,
        lr_decay_at=(30 / 90, 60 / 90, 80 / 90),
        lr_warmup=5.0,
    ),
    source="https://image-net.org, after registration",
    licence="terms of access of image-net.org; O. Russakovsky et al., IJCV 115, 2015",
    in_files=True,
)
PER_PIXEL_CARD = replace(
    CARD, name="imagenet-per-pixel", title=f"{CARD.title}, mean of each pixel subtracted"
)


def find(data_dir: Path | None) -> Path | None:
    """The nearest folder with `train` and `val`: `imagenet` in one of the places, or a place."""
    for place in data_folders(data_dir):
        for folder in (place / FOLDER, place):
            if (folder / TRAIN).is_dir() and (folder / TEST).is_dir():
                return folder
    return None


def load(source: Source) -> ImageFolderTask:
    """Inputs with each channel's mean subtracted, as in public recipes."""
    return _task(CARD, source)


def load_per_pixel(source: Source) -> ImageFolderTask:
    """Inputs with each pixel's own mean subtracted, as the paper has it (He et al., 2016)."""
    task = _task(PER_PIXEL_CARD, source)
    return replace(task, mean=mean_image(task).to(source.device))


def _task(card: Card, source: Source) -> ImageFolderTask:
    folder = find(source.data_dir)
    if folder is None:
        layout = f"the folder {FOLDER} with {TRAIN}/CLASS/*.JPEG and {TEST}/CLASS/*.JPEG"
        hint = advice(layout, source.data_dir)
        raise UserError(f"no data here, and {card.name} is not downloaded ({card.source}); {hint}")
    return folder_task(folder, card, pillow_decode(), source.device, source.augment)


def folder_task(
    folder: Path,
    card: Card,
    decode: Decode,
    device: torch.device | str = "cpu",
    augment: bool | None = None,
) -> ImageFolderTask:
    """The images in `folder`, however many and of whatever classes; the rest is the card's.

    Training images are numbered in an order drawn once and for all, those of the test set by name.

    Raises:
        UserError: names what is missing, empty, or not like the other part.
    """
    classes = class_names(folder / TRAIN)
    train, test = (find_files(folder / part, classes) for part in (TRAIN, TEST))
    card = replace(
        card, classes=len(classes), train_size=len(train.paths), test_size=len(test.paths)
    )
    mean, std = (torch.tensor(value, device=device).view(3, 1, 1) for value in (MEAN, STD))
    return ImageFolderTask(
        card=card,
        train=train.shuffled(),
        test=test,
        mean=mean,
        std=std,
        decode=decode,
        augment=augment is not False,
        device=device,
    )


def mean_image(task: ImageFolderTask) -> Tensor:
    """The mean [3, S, S] of the middles of training images, evenly spread over all of them.

    Every image of a folder is read up to 10,000; of more, every n-th.
    """
    every = -(-task.train_size // MEAN_SAMPLES)
    chosen = torch.arange(0, task.train_size, every)
    plain = replace(task, mean=torch.zeros(3, 1, 1), std=torch.ones(3, 1, 1), device="cpu")
    total = torch.zeros(task.input_shape, dtype=torch.float64)
    for part in chosen.split(task.judged_together):
        total += plain.train_batch(part, None)[0].double().sum(0)
    return (total / len(chosen)).float()


ENTRY = Entry(CARD, find, load)
PER_PIXEL_ENTRY = Entry(PER_PIXEL_CARD, find, load_per_pixel)
