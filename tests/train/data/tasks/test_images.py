from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from localsgd.errors import UserError
from localsgd.train.data import tasks
from localsgd.train.data.tasks.images import Images, ImageTask, balanced
from tests.train.data.cards import card_of_images

CARD = card_of_images(3, (2, 4, 5), train_size=30)


@pytest.fixture
def task() -> ImageTask:
    chance = torch.Generator().manual_seed(0)

    def images(count: int) -> Images:
        pixels = torch.randint(0, 256, (count, 2, 4, 5), dtype=torch.uint8, generator=chance)
        return Images(pixels, torch.arange(count) % 3)

    return ImageTask(card=CARD, train=images(30), test=images(6), mean=(10.0, 20.0), std=(2.0, 8.0))


def test_each_channel_is_normalised_with_its_own_mean_and_deviation(task: ImageTask) -> None:
    inputs, labels = task.train_batch(torch.tensor([4, 1, 4]), None)
    for b, i in enumerate([4, 1, 4]):
        pixels = task.train.pixels[i].double()
        expected = torch.stack([(pixels[0] - 10) / 2, (pixels[1] - 20) / 8])
        assert torch.equal(inputs[b].double(), expected)
        assert labels[b] == i % 3


def test_augmentation_comes_before_normalisation_and_only_with_a_generator(task: ImageTask) -> None:
    black = replace(task, augment=lambda pixels, generator: torch.zeros_like(pixels))
    indices = torch.tensor([0, 7])
    inputs, _ = black.train_batch(indices, torch.Generator())
    assert torch.equal(inputs[:, 0], torch.full((2, 4, 5), -5.0))
    assert torch.equal(inputs[:, 1], torch.full((2, 4, 5), -2.5))
    assert torch.equal(black.train_batch(indices, None)[0], task.train_batch(indices, None)[0])


def test_correct_counts_the_most_likely_class(task: ImageTask) -> None:
    output = torch.tensor([[1.0, 2.0, 0.0], [5.0, 1.0, 1.0], [0.0, 0.1, 0.2]])
    assert task.correct(output, torch.tensor([1, 0, 1])).item() == 2


def test_loss_is_the_mean_cross_entropy(task: ImageTask) -> None:
    output = torch.tensor([[0.0, 0.0, 0.0], [np.log(2.0), 0.0, 0.0]], dtype=torch.float64)
    loss = task.loss(output, torch.tensor([2, 0]))
    assert loss.item() == pytest.approx((np.log(3) + np.log(2)) / 2, rel=1e-14)


def test_images_are_mixed_unless_they_lie_so(task: ImageTask) -> None:
    """Batch norm is estimated on a part of them, and of images by class that would be one class."""
    order = task.mixed(30)
    assert not torch.equal(order, torch.arange(30))
    assert torch.equal(order.sort().values, torch.arange(30))
    assert torch.equal(replace(task, in_mixed_order=True).mixed(8), torch.arange(8))
    assert tasks.load("digits").in_mixed_order


def test_a_subset_is_balanced_and_keeps_the_test_set(task: ImageTask) -> None:
    part = task.subset(14)
    assert (part.train_size, part.test_size) == (14, 6)
    assert torch.bincount(part.train.labels).tolist() == [5, 5, 4]
    assert part.test is task.test
    assert task.train_size == 30


def test_balanced_draws_are_frozen_across_versions() -> None:
    labels = torch.arange(100) % 10
    drawn = balanced(labels, 10, 10, seed=0)
    assert drawn.tolist() == [7, 15, 19, 20, 22, 31, 36, 54, 63, 78]
    assert drawn.tolist() != balanced(labels, 10, 10, seed=1).tolist()


@pytest.mark.parametrize("count", [-1, 0, 31])
def test_a_subset_that_is_not_there_is_refused(task: ImageTask, count: int) -> None:
    with pytest.raises(UserError, match="1 to 30 can"):
        task.subset(count)


def test_a_rare_class_limits_a_subset(task: ImageTask) -> None:
    labels = torch.cat([torch.zeros(26), torch.ones(2), torch.full((2,), 2)]).long()
    rare = replace(task, train=Images(task.train.pixels, labels))
    assert rare.subset(7).train_size == 7  # 3 + 2 + 2
    with pytest.raises(UserError, match=r"subset of 8 samples .* 1 to 7 can"):
        rare.subset(8)


def test_data_that_is_not_what_the_card_says_is_a_mistake(task: ImageTask) -> None:
    with pytest.raises(ValueError, match="made-up"):
        replace(task, train=task.test)
