"""What a run trains: data in batches, a loss and a metric.

B: samples of a batch · C, H, W: channels, height and width of an input
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Defaults:
    """How a task is trained where nothing else is said.

    `learning_rate` belongs to a global batch of `lr_batch` samples: the linear rule (Goyal et al.,
    2017) gives `learning_rate * K * batch / lr_batch` to K workers with `batch` samples each.
    """

    epochs: int
    batch: int
    learning_rate: float
    lr_batch: int
    weight_decay: float
    momentum: float = 0.9


@dataclass(frozen=True)
class Card:
    """What is known of a task before its data is read."""

    name: str
    title: str
    classes: int
    input_shape: tuple[int, ...]
    """(C, H, W) of one sample."""
    train_size: int
    test_size: int
    default_model: str
    defaults: Defaults
    source: str
    """Where the data comes from, for people."""
    licence: str
    """Terms of the data, and what to cite."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Task(ABC):
    """Training and test samples by index, and how an output is judged.

    A task draws no order and knows no workers: whoever trains says which samples make a batch.
    """

    card: Card

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def title(self) -> str:
        return self.card.title

    @property
    def classes(self) -> int:
        return self.card.classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.card.input_shape

    @property
    def train_size(self) -> int:
        return self.card.train_size

    @property
    def test_size(self) -> int:
        return self.card.test_size

    @property
    def default_model(self) -> str:
        return self.card.default_model

    @property
    def defaults(self) -> Defaults:
        return self.card.defaults

    @abstractmethod
    def train_batch(
        self, indices: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Training samples `indices` [B] int64 as float32 inputs [B, *input_shape] and targets.

        Augmented where the task augments and a `generator` is given; all chance is drawn from it,
        in an order that depends on B alone. Without a generator the samples come as they are.
        """

    @abstractmethod
    def test_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Test samples `indices` [B] int64, never augmented."""

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch, 0-d."""

    @abstractmethod
    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        """How many predictions are right, 0-d int64."""

    @abstractmethod
    def subset(self, train: int, seed: int = 0) -> Self:
        """The same task with `train` of its training samples, fixed by `seed`; all test samples."""
