"""What every task keeps to. A new task joins by a line in `TASKS`."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from localsgd.testing.task import CHECKS, CHECKS_WITH_MODEL, default_model
from localsgd.train.data import tasks
from localsgd.train.data.task import Task
from localsgd.train.data.tasks import imagenet, wikitext
from localsgd.train.data.tasks.augment import crop_and_flip
from localsgd.train.data.tasks.images import Images, ImageTask
from localsgd.train.data.tasks.text import TextTask
from tests.train.data.cards import card_of_images


def from_disk(name: str) -> Callable[[], Task]:
    """The real data, where LOCALSGD_DATA says that there is some."""

    def make() -> Task:
        if "LOCALSGD_DATA" not in os.environ:
            pytest.skip("LOCALSGD_DATA is not set")
        return tasks.load(name)

    return make


def large(name: str) -> Callable[[], Task]:
    """Data that few have: `made-up-folder` stands for it."""

    def make() -> Task:
        if imagenet.find(None) is None:
            pytest.skip("no images in ImageNet's layout are where LOCALSGD_DATA says")
        return tasks.load(name)

    return make


def made_up() -> Task:
    """Sixty random colour images with crops and flips."""
    card = card_of_images(4, (3, 16, 16), train_size=60, test_size=20, default_model="resnet8")
    chance = torch.Generator().manual_seed(0)

    def images(count: int) -> Images:
        pixels = torch.randint(0, 256, (count, 3, 16, 16), dtype=torch.uint8, generator=chance)
        return Images(pixels, torch.arange(count) % 4)

    return ImageTask(
        card=card,
        train=images(60),
        test=images(20),
        mean=(127.0,) * 3,
        std=(64.0,) * 3,
        augment=crop_and_flip,
    )


def made_up_text() -> Task:
    """Forty words at random, six thousand times; every word is in both texts."""
    chance = torch.Generator().manual_seed(0)
    texts = [torch.randint(40, (tokens,), generator=chance) for tokens in (6000, 2000)]
    card = replace(wikitext.CARD, classes=40, train_size=199, test_size=66)
    card = replace(card, name="made-up-text", default_model="lstm-1x8")
    return TextTask(card=card, train=texts[0], test=texts[1])


def made_up_folder() -> Task:
    """Sixty random images in JPEGs, twenty to test, read by Pillow."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    chance = np.random.RandomState(0)
    for part, count in (("train", 60), ("val", 20)):
        for number in range(count):
            path = folder / part / f"class{number % 4}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = chance.randint(0, 256, (24, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(path)

    def decode(path: Path) -> Tensor:
        with Image.open(path) as opened:
            return torch.from_numpy(np.array(opened)).permute(2, 0, 1)

    card = replace(
        imagenet.CARD,
        name="made-up-folder",
        input_shape=(3, 14, 14),
        default_model="small-cnn-4",
    )
    return imagenet.folder_task(folder, card, decode)


TASKS: dict[str, Callable[[], Task]] = {
    "made-up": made_up,
    "made-up-text": made_up_text,
    "made-up-folder": made_up_folder,
    "digits": lambda: tasks.load("digits"),
    "fashion-mnist": from_disk("fashion-mnist"),
    "cifar10": from_disk("cifar10"),
    "cifar100": from_disk("cifar100"),
    "wikitext-2": from_disk("wikitext-2"),
    "imagenet": large("imagenet"),
    "imagenet-per-pixel": large("imagenet-per-pixel"),
}


@cache
def loaded(name: str) -> Task:
    return TASKS[name]()


@pytest.fixture(params=TASKS)
def task(request: pytest.FixtureRequest) -> Task:
    return loaded(request.param)


def test_every_task_is_listed_here() -> None:
    assert set(tasks.task_names()) <= TASKS.keys()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_conforms(task: Task, check: Callable[[Task], None]) -> None:
    check(task)


@pytest.mark.timeout(300)  # a real text in pieces
@pytest.mark.parametrize("check", CHECKS_WITH_MODEL, ids=lambda check: check.__name__)
def test_conforms_with_its_default_model(
    task: Task, check: Callable[[Task, nn.Module], None]
) -> None:
    check(task, default_model(task))
