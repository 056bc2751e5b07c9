from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from localsgd.errors import UserError
from localsgd.train.data import models, tasks
from localsgd.train.data.task import Task
from localsgd.train.data.tasks import wikitext
from localsgd.train.data.tasks.images import Images, ImageTask
from localsgd.train.data.tasks.text import TextTask
from tests.train.data.cards import card_of_images


def images(shape: tuple[int, int, int], classes: int) -> Task:
    card = card_of_images(classes, shape)
    if sum(shape) > 500:  # of large images, the shape alone
        return SimpleNamespace(card=card, input_shape=shape, classes=classes)  # type: ignore
    pixels = torch.randint(0, 256, (6, *shape), dtype=torch.uint8)
    data = Images(pixels, torch.arange(6) % classes)
    channels = shape[0]
    return ImageTask(
        card=card, train=data, test=data, mean=(128.0,) * channels, std=(64.0,) * channels
    )


def text(words: int, tokens: int = 97) -> TextTask:
    count = (tokens - 1) // 30
    card = replace(wikitext.CARD, classes=words, train_size=count, test_size=count)
    numbers = torch.arange(tokens) % words
    return TextTask(card=card, train=numbers, test=numbers)


CIFAR10, CIFAR100 = images((3, 32, 32), 10), images((3, 32, 32), 100)
GREY28, GREY8 = images((1, 28, 28), 10), images((1, 8, 8), 10)
IMAGENET, TEXT = images((3, 224, 224), 1000), text(33_278)


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("name", "task", "parameters"),
    [
        ("resnet20", CIFAR10, 272_474),
        ("resnet20-identity", CIFAR10, 269_722),
        ("resnet20", CIFAR100, 278_324),
        ("resnet32-identity", CIFAR10, 464_154),
        ("resnet44-identity", CIFAR10, 658_586),
        ("resnet56-identity", CIFAR10, 853_018),
        ("resnet110-identity", CIFAR10, 1_727_962),
        ("resnet8", CIFAR10, 78_042),
        ("small-cnn", GREY8, 24_058),
        ("small-cnn", CIFAR10, 24_346),
        ("small-cnn-8", GREY28, 6_274),
        ("mlp", GREY8, 64 * 64 + 64 + 64 * 10 + 10),
        ("mlp-5", GREY8, 64 * 5 + 5 + 5 * 10 + 10),
        ("densenet40-12", CIFAR10, 1_059_298),
        ("densenet40-12", CIFAR100, 1_100_428),
        ("wrn28-10", CIFAR10, 36_479_194),
        ("wrn28-10", CIFAR100, 36_536_884),
        ("wrn16-4", CIFAR10, 2_748_890),
        ("imagenet-resnet50", IMAGENET, 25_557_032),
        ("imagenet-resnet101", IMAGENET, 44_549_160),
        ("lstm", TEXT, 2 * 33_278 * 650 + 33_278 + 3 * 4 * 650 * (2 * 650 + 2)),
        ("lstm-tied", TEXT, 33_278 * 650 + 33_278 + 3 * 4 * 650 * (2 * 650 + 2)),
        ("lstm-1x5", TEXT, 2 * 33_278 * 5 + 33_278 + 4 * 5 * (2 * 5 + 2)),
    ],
)
def test_exact_parameter_counts(name: str, task: Task, parameters: int) -> None:
    with torch.device("meta"):
        assert count(models.build(name, task, 0)) == parameters


@pytest.mark.parametrize(
    "task", [CIFAR10, CIFAR100, GREY28, GREY8], ids=["cifar10", "cifar100", "grey28", "grey8"]
)
@pytest.mark.parametrize(
    "name",
    [
        "resnet8",
        "resnet8-identity",
        "small-cnn",
        "mlp",
        "densenet10-4",
        "wrn10-1",
        "imagenet-resnet50-1",
    ],
)
def test_every_model_fits_every_kind_of_image(name: str, task: Task) -> None:
    model = models.build(name, task, 0)
    inputs, labels = task.train_batch(torch.arange(6), None)
    output = model(inputs)
    assert output.shape == (6, task.classes)
    task.loss(output, labels).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_all_names_can_be_built() -> None:
    assert len(set(models.model_names())) == len(models.model_names())
    for name in models.model_names():
        task = TEXT if name.startswith("lstm") else GREY8
        with torch.device("meta"):
            assert isinstance(models.build(name, task, 0), nn.Module)


@pytest.mark.parametrize("name", ["resnet8", "small-cnn", "mlp", "densenet10-4", "lstm-2x8"])
def test_the_seed_decides_the_weights_and_nothing_else_does(name: str) -> None:
    task = text(11) if name.startswith("lstm") else GREY8
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = models.build(name, task, 7)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    second = models.build(name, task, 7)
    other = models.build(name, task, 8)
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])
    assert any(
        not torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("resnet18", "resnet20"),
        ("resnet50", "resnet50"),
        ("resnet19-identity", "resnet20-identity"),
        ("resnet2", "resnet8"),
        ("resnet0", "resnet8"),
        ("resnet", "resnet8"),
        ("smallcnn", "small-cnn"),
        ("small-cnn-0", "small-cnn"),
        ("mpl", "mlp"),
        ("densenet41-12", "densenet40-12"),
        ("wrn27-10", "wrn28-10"),
        ("wrn28", "wrn28-10"),
        ("imagenet-resnet34", "imagenet-resnet50"),
        ("lstm-3", "lstm"),
    ],
)
def test_an_unknown_model_is_answered_with_the_nearest(name: str, nearest: str) -> None:
    if name == nearest:
        models.build(name, GREY8, 0)
        return
    with pytest.raises(UserError, match=f"nearest: {nearest}"):
        models.build(name, GREY8, 0)


@pytest.mark.parametrize(
    ("name", "task", "said"),
    [
        ("lstm", GREY8, "model lstm reads text, but the task made-up gives images; use mlp"),
        ("wrn16-4", TEXT, "model wrn16-4 reads images, but the task wikitext-2 gives text; use l"),
    ],
)
def test_a_model_for_other_inputs_is_refused(name: str, task: Task, said: str) -> None:
    with pytest.raises(UserError, match=said):
        models.build(name, task, 0)


def test_only_plain_batch_norm_with_buffers_is_used() -> None:
    for name in ("resnet20", "small-cnn", "densenet10-4", "wrn10-1", "imagenet-resnet50-1"):
        norms = [m for m in models.build(name, CIFAR10, 0).modules() if "Norm" in type(m).__name__]
        assert norms
        for norm in norms:
            assert type(norm) is nn.BatchNorm2d
            assert norm.track_running_stats
            assert norm.affine


def test_tasks_offers_the_models() -> None:
    assert tasks.models is models
