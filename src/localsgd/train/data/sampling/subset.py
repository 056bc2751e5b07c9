"""Fixed subsets of a task's samples, on which curvature is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from localsgd.basics.seeds import generator_for
from localsgd.errors import UserError
from localsgd.train.data.task import Task

Batches = list[tuple[Tensor, Tensor]]
NAMES = ("train", "test")


def batches_of(
    task: Task,
    samples: int | None = None,
    *,
    names: Sequence[str] = NAMES,
    batch: int = 500,
    seed: int = 0,
    draws: torch.Generator | None = None,
) -> dict[str, Batches]:
    """Training and test samples as {"train": batches, "test": batches}.

    Args:
        task: whose samples.
        samples: at most so many of each, drawn once by `seed`; all if not given.
        names: which of the two.
        batch: samples of a batch.
        draws: for the augmentation of training samples, as in training; none is augmented if not
            given.
    """
    if samples is not None and samples < 1:
        raise UserError(f"{samples} samples are too few to measure on; give 1 or more")
    sizes = {"train": task.train_size, "test": task.test_size}
    return {
        name: _batches(_reader(task, name, draws), chosen(sizes[name], samples, name, seed), batch)
        for name in names
    }


def chosen(size: int, samples: int | None, name: str, seed: int) -> Tensor:
    """The ascending indices of `samples` of `size` samples, fixed by a seed."""
    if samples is None or samples >= size:
        return torch.arange(size)
    drawn = torch.randperm(size, generator=generator_for(seed, f"landscape {name}"))
    return drawn[:samples].sort().values


def _reader(
    task: Task, name: str, draws: torch.Generator | None
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    if name == "train":
        return lambda indices: task.train_batch(indices, draws)
    return task.test_batch


def _batches(
    read: Callable[[Tensor], tuple[Tensor, Tensor]], indices: Tensor, batch: int
) -> Batches:
    return [read(part) for part in indices.split(batch)]
