"""The interface of a task: data in batches, a loss and a metric.

B: samples of a batch · C, H, W: channels, height and width of an image · T: tokens of a text
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from localsgd.basics.seeds import generator_for
from localsgd.errors import UserError
from localsgd.train.data.metric import ACCURACY, METRICS, Metric


@dataclass(frozen=True)
class Defaults:
    """A task's default settings.

    `learning_rate` belongs to a global batch of `lr_batch` samples: the linear rule (Goyal et al.,
    2017) gives `learning_rate * K * batch / lr_batch` to K workers with `batch` samples each.
    """

    epochs: int
    batch: int
    learning_rate: float
    lr_batch: int
    weight_decay: float
    momentum: float = 0.9
    clip: float | None = None
    """Largest norm of a worker's gradient; longer ones are scaled down to it."""
    lr_decay_at: tuple[float, ...] = (0.5, 0.75)
    """Fractions of the run after which the learning rate falls."""
    lr_warmup: float | None = None
    """Epochs over which the rate rises to its peak; 5 in 300 if not given. A run of another length
    has the same fraction."""


@dataclass(frozen=True)
class Card:
    """A description of a task, known before its data is read."""

    name: str
    title: str
    classes: int
    input_shape: tuple[int, ...]
    """(C, H, W) of one image, or (T,) of one segment of text."""
    train_size: int
    test_size: int
    default_model: str
    defaults: Defaults
    source: str
    """The origin of the data, for people."""
    licence: str
    """Terms of the data, and what to cite."""
    metric: Metric = ACCURACY
    """The metric of a model: `ACCURACY` or `PERPLEXITY`, which records know."""
    sequential: bool = False
    """Whether a sample continues the one before it, so that workers read streams."""
    in_files: bool = False
    """Whether samples stay in files until a batch needs them."""

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise UserError(
                f"task {self.name!r} is judged by {self.metric.name!r}, which records don't know; "
                "give ACCURACY or PERPLEXITY of localsgd.train.data.metric"
            )


@dataclass(frozen=True, eq=False, kw_only=True)
class Task(ABC):
    """Training and test samples by index, with a loss and a metric.

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

    @property
    def labels(self) -> Tensor | None:
        """The class of every training sample [N] int64, if it has one."""
        return None

    @abstractmethod
    def train_batch(
        self, indices: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        """Training samples `indices` [B] int64 as inputs [B, *input_shape] and int64 targets.

        Inputs are float32, or int64 if they are tokens.

        Augmented if the task augments and a `generator` is given; all chance is drawn from it,
        in an order that depends on B alone. Without a generator the samples come as they are.
        """

    @abstractmethod
    def test_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Test samples `indices` [B] int64, never augmented."""

    def mixed(self, count: int) -> Tensor:
        """Indices of `count` training samples [count] int64, of which any batch is like the whole.

        Drawn at random, the same every time, as data may be stored by class.
        """
        return torch.randperm(self.train_size, generator=generator_for(0, "mixed"))[:count]

    @property
    def pieces(self) -> int:
        """The number of parts of the test set that can be evaluated independently: samples."""
        return self.test_size

    @property
    def judged_together(self) -> int:
        """Pieces in one pass of a model that is judged; it does not change the result."""
        return 500

    @torch.no_grad()
    def judge(self, model: nn.Module, pieces: Tensor) -> Tensor:
        """`model`, in eval mode, on `pieces` of the test set: [3] float64, on the CPU.

        The summed loss of all targets, how many predictions are right, and how many targets there
        are.
        """
        x, y = self.test_batch(pieces)
        return self.verdict(model(as_read(x, model)), y, model)

    def verdict(self, output: Tensor, target: Tensor, model: nn.Module) -> Tensor:
        """The sums of losses, correct predictions and targets of a batch: [3] float64."""
        count, correct = target.numel(), self.correct(output, target)
        loss = self.loss(as_read(output, model), target)
        return torch.tensor([float(loss) * count, float(correct), count], dtype=torch.float64)

    @abstractmethod
    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch, 0-d."""

    @abstractmethod
    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        """The number of correct predictions, 0-d int64."""

    @abstractmethod
    def subset(self, train: int, seed: int = 0) -> Self:
        """The same task with `train` of its training samples, fixed by `seed`; all test samples."""


def as_read(x: Tensor, model: nn.Module) -> Tensor:
    """`x` in the precision of the model's weights; tokens as they are."""
    return x.to(next(model.parameters()).dtype) if x.is_floating_point() else x
