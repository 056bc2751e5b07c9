"""What every task keeps to. A new task joins by a line in `TASKS`."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from localsgd.errors import UserError
from localsgd.train.data import tasks
from localsgd.train.data.metric import metric_of
from localsgd.train.data.task import Card, Defaults, Task, as_read
from localsgd.train.data.tasks import imagenet, wikitext
from localsgd.train.data.tasks.augment import crop_and_flip
from localsgd.train.data.tasks.images import Images, ImageTask
from localsgd.train.data.tasks.text import TextTask


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
    card = Card(
        name="made-up",
        title="Made-up images",
        classes=4,
        input_shape=(3, 16, 16),
        train_size=60,
        test_size=20,
        default_model="resnet8",
        defaults=Defaults(epochs=1, batch=2, learning_rate=0.1, lr_batch=2, weight_decay=0.0),
        source="nowhere",
        licence="none",
    )
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


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def same(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


INDICES = torch.tensor([5, 0, 17, 5, 2])


def test_every_task_is_listed_here() -> None:
    assert set(tasks.task_names()) <= TASKS.keys()


def test_batches_have_the_shapes_of_the_card(task: Task) -> None:
    for batch in (task.train_batch(INDICES, None), task.test_batch(INDICES)):
        inputs, targets = batch
        assert inputs.shape == (5, *task.input_shape)
        assert inputs.dtype == (torch.int64 if task.card.sequential else torch.float32)
        assert inputs.isfinite().all()
        assert len(targets) == 5
        assert targets.dtype == torch.int64


def test_every_sample_is_there_and_no_more(task: Task) -> None:
    for size, batch in (
        (task.train_size, lambda i: task.train_batch(i, None)),
        (task.test_size, task.test_batch),
    ):
        batch(torch.tensor([0, size - 1]))
        with pytest.raises(IndexError):
            batch(torch.tensor([size]))


def test_targets_cover_the_classes(task: Task) -> None:
    for size, batch in (
        (task.train_size, lambda i: task.train_batch(i, None)),
        (task.test_size, task.test_batch),
    ):
        found = set()
        for indices in torch.arange(size).split(1000):
            found |= set(batch(indices)[1].flatten().tolist())
        everything = set(range(task.classes))
        assert found <= everything if task.card.sequential else found == everything


def test_labels_are_the_targets_of_training(task: Task) -> None:
    if task.labels is None:
        assert task.card.sequential
    else:
        assert task.labels.shape == (task.train_size,)
        assert torch.equal(task.train_batch(INDICES, None)[1].cpu(), task.labels[INDICES].cpu())


@pytest.mark.timeout(300)  # a real text in pieces
def test_the_pieces_of_the_test_set_make_up_the_whole(task: Task) -> None:
    model = tasks.models.build(task.default_model, task, 0).double().eval()
    few = task.test_size <= 2000
    pieces = torch.arange(task.pieces if few else 3)
    whole = task.judge(model, pieces)
    assert whole.dtype == torch.float64
    assert 0 <= whole[1] <= whole[2]
    if few:
        batches = torch.arange(task.test_size).split(9)
        assert whole[2] == sum(task.test_batch(some)[1].numel() for some in batches)
    parts = torch.stack([task.judge(model, some) for some in pieces.tensor_split(3)]).sum(0)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=0)


def test_the_metric_of_a_record(task: Task) -> None:
    assert metric_of({task.card.metric.key: 1.0}) is task.card.metric


def test_a_batch_is_its_samples_in_order(task: Task) -> None:
    for batch in (lambda i: task.train_batch(i, None), task.test_batch):
        singles = [batch(INDICES[i : i + 1]) for i in range(5)]
        inputs, targets = zip(*singles, strict=True)
        assert same(batch(INDICES), (torch.cat(inputs), torch.cat(targets)))


def test_all_chance_comes_from_the_generator(task: Task) -> None:
    state = torch.get_rng_state()
    first = task.train_batch(INDICES, seeded(1))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    assert same(task.train_batch(INDICES, seeded(1)), first)


def test_how_much_is_drawn_depends_on_the_size_alone(task: Task) -> None:
    one, other = seeded(1), seeded(1)
    task.train_batch(INDICES, one)
    task.train_batch(INDICES + 1, other)
    assert torch.equal(one.get_state(), other.get_state())


def test_augmentation_keeps_targets_and_draws_anew(task: Task) -> None:
    plain = task.train_batch(torch.arange(20), None)
    generator = seeded(1)
    first = task.train_batch(torch.arange(20), generator)
    second = task.train_batch(torch.arange(20), generator)
    assert torch.equal(first[1], plain[1])
    if not torch.equal(first[0], plain[0]):
        assert not torch.equal(first[0], second[0])


def test_a_batch_may_be_overwritten(task: Task) -> None:
    for batch in (lambda: task.train_batch(INDICES, None), lambda: task.test_batch(INDICES)):
        inputs, targets = batch()
        before = inputs.clone(), targets.clone()
        inputs.zero_()
        targets.zero_()
        assert same(batch(), before)


def outputs(task: Task) -> tuple[Tensor, Tensor]:
    """Of the default model, in double precision, with targets."""
    model = tasks.models.build(task.default_model, task, 0).double().eval()
    inputs, targets = task.test_batch(INDICES)
    return model(as_read(inputs, model)), targets


def test_the_default_model_learns_from_the_loss(task: Task) -> None:
    model = tasks.models.build(task.default_model, task, 0)
    inputs, targets = task.train_batch(INDICES, seeded(0))
    loss = task.loss(model(inputs), targets)
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_loss_is_a_mean_over_samples(task: Task) -> None:
    output, targets = outputs(task)
    singles = [task.loss(output[i : i + 1], targets[i : i + 1]) for i in range(5)]
    mean = torch.stack(singles).mean()
    torch.testing.assert_close(task.loss(output, targets), mean, rtol=1e-12, atol=0)


def test_correct_is_a_count_over_samples(task: Task) -> None:
    output, targets = outputs(task)
    count = task.correct(output, targets)
    assert count.dtype == torch.int64
    assert count.shape == ()
    assert count == sum(task.correct(output[i : i + 1], targets[i : i + 1]) for i in range(5))
    perfect = torch.nn.functional.one_hot(targets, task.classes).double()
    assert task.correct(perfect, targets) == targets.numel()
    assert task.correct(-perfect, targets) == 0


def test_a_subset_is_a_fixed_part_of_the_training_set(task: Task) -> None:
    size = 2 * task.classes
    part, again, other = task.subset(size), task.subset(size), task.subset(size, seed=1)
    assert (part.train_size, part.test_size) == (size, task.test_size)
    everything = torch.arange(size)
    batch = part.train_batch(everything, None)
    assert same(batch, again.train_batch(everything, None))
    assert not same(batch, other.train_batch(everything, None))
    assert same(part.test_batch(INDICES), task.test_batch(INDICES))
    with pytest.raises(IndexError):
        part.train_batch(torch.tensor([size]), None)
    assert part.classes == task.classes


def test_a_subset_larger_than_the_whole_is_refused(task: Task) -> None:
    with pytest.raises(UserError, match="subset"):
        task.subset(task.train_size + 1)


def test_a_task_is_frozen(task: Task) -> None:
    with pytest.raises((FrozenInstanceError, AttributeError)):
        task.card = None  # type: ignore[misc]
