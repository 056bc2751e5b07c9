"""A task of tensors in memory that a program has already.

N: samples · T: tokens of a text · C: classes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.train.data.metric import ACCURACY, Metric
from localsgd.train.data.task import Card, Defaults, Task

Samples: TypeAlias = tuple[Tensor, Tensor]
"""Inputs [N, ...] float32, or int64 if they are tokens, and classes [N] or [N, T] int64."""
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From scores [M, C] and classes [M] to the mean loss."""
USUAL = Defaults(epochs=10, batch=32, learning_rate=0.1, lr_batch=32, weight_decay=1e-4)


@dataclass(frozen=True, eq=False, kw_only=True)
class TensorTask(Task):
    """Samples that lie in memory, with a class each, or one for each token.

    Args:
        train: inputs and classes to train on.
        test: to judge models by.
        criterion: the loss.
    """

    train: Samples
    test: Samples
    criterion: Loss = cross_entropy

    @property
    def labels(self) -> Tensor | None:
        return self.train[1] if self.train[1].dim() == 1 else None

    def train_batch(
        self, indices: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        return _taken(self.train, indices)

    def test_batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return _taken(self.test, indices)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.criterion(output.flatten(0, -2), target.flatten())

    def correct(self, output: Tensor, target: Tensor) -> Tensor:
        return (output.argmax(-1) == target).sum()

    def subset(self, train: int, seed: int = 0) -> Self:
        if not 1 <= train <= self.train_size:
            raise UserError(
                f"a subset of {train} of {plural(self.train_size, 'sample')} can't be taken"
            )
        draw = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(self.train_size, generator=draw)[:train].sort().values
        card = replace(self.card, train_size=train)
        return replace(self, card=card, train=_taken(self.train, chosen))

    def to(self, device: torch.device | str) -> Self:
        """The same on another device."""
        train, test = (
            tuple(part.to(device) for part in samples) for samples in (self.train, self.test)
        )
        return replace(self, train=train, test=test)


def task_of(
    name: str,
    train: Samples | Sequence[tuple[Any, Any]],
    test: Samples | Sequence[tuple[Any, Any]],
    *,
    loss: Loss = cross_entropy,
    defaults: Defaults = USUAL,
    metric: Metric = ACCURACY,
    model: str = "mlp",
) -> TensorTask:
    """The task of data that a program has: tensors, or data sets with a sample at each index.

    A model gives scores [B, C] for classes [N], and [B, T, C] for those of tokens, [N, T]. Data
    that is augmented, or does not fit in memory, needs a `Task` of its own.

    Args:
        name: in records.
        train, test: inputs and classes; a data set such as torchvision's is read as a whole.
        loss: the mean loss of scores [M, C] and classes [M].
        defaults: the settings of a run that gives none.
        metric: by which models are judged, `ACCURACY` or `PERPLEXITY` of
            `localsgd.train.data.metric`.
        model: the name of the usual one.

    Raises:
        UserError: the classes are not whole numbers from 0, inputs and classes differ in number, or
            there is no such metric.
    """
    both = {"train": _samples(train, "train"), "test": _samples(test, "test")}
    inputs = both["train"][0]
    card = Card(
        name=name,
        title=f"{name}, data of a program",
        classes=1 + max(int(samples[1].max()) for samples in both.values()),
        input_shape=tuple(inputs.shape[1:]),
        train_size=len(inputs),
        test_size=len(both["test"][0]),
        default_model=model,
        defaults=defaults,
        source="a program",
        licence="not stated",
        metric=metric,
    )
    return TensorTask(card=card, criterion=loss, **both)


def _samples(given: Samples | Sequence[tuple[Any, Any]], what: str) -> Samples:
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Tensor):
        inputs, classes = cast(Samples, given)
    else:
        pairs = [given[index] for index in range(len(given))]
        if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
            raise UserError(
                f"the {what} data is neither two tensors nor a data set of pairs; give inputs and "
                "classes as torch tensors, such as (torch.as_tensor(x), torch.as_tensor(y))"
            )
        inputs = torch.stack([torch.as_tensor(x) for x, _ in pairs])
        classes = torch.stack([torch.as_tensor(y) for _, y in pairs])
    if len(inputs) != len(classes) or not len(inputs):
        raise UserError(
            f"the {what} data has {plural(len(inputs), 'input')} and {len(classes)} classes; give "
            "one class for each of one or more inputs"
        )
    if classes.is_floating_point() or classes.dtype == torch.bool or int(classes.min()) < 0:
        raise UserError(
            f"the {what} data has {classes.dtype} in the place of classes; give whole numbers from "
            "0, or extend localsgd.train.data.task.Task for targets of another kind"
        )
    inputs = inputs.float() if inputs.is_floating_point() else inputs.long()
    return inputs, classes.long()


def _taken(samples: Samples, indices: Tensor) -> Samples:
    chosen = indices.to(samples[1].device)
    return samples[0][chosen], samples[1][chosen]
