"""Models by name.

For images: `small-cnn`, `mlp`, `resnetN`, `resnetN-identity`, `densenetN-K`, `wrnN-K`,
`imagenet-resnetN`. For text: `lstm`, `lstm-LxD`, `lstm-tied`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from localsgd.errors import UserError, unknown_name
from localsgd.train.data.models import (
    densenet,
    imagenet_resnet,
    lstm,
    mlp,
    resnet,
    small_cnn,
    wide_resnet,
)
from localsgd.train.data.models.decay import no_decay
from localsgd.train.data.models.initial import HeadInit, initialise
from localsgd.train.data.models.operations import count_operations
from localsgd.train.data.task import Task

__all__ = ["HeadInit", "build", "count_operations", "model_names", "no_decay"]

Build = Callable[[Task], nn.Module]


@dataclass(frozen=True)
class _Family:
    """Models of one kind: `parse` turns a name into a way to build, or None if it isn't theirs."""

    parse: Callable[[str], Build | None]
    names: tuple[str, ...]
    reads: str = "images"


# A new family joins by a line here.
_FAMILIES = (
    _Family(small_cnn.parse, small_cnn.NAMES),
    _Family(mlp.parse, mlp.NAMES),
    _Family(resnet.parse, resnet.NAMES),
    _Family(densenet.parse, densenet.NAMES),
    _Family(wide_resnet.parse, wide_resnet.NAMES),
    _Family(imagenet_resnet.parse, imagenet_resnet.NAMES),
    _Family(lstm.parse, lstm.NAMES, reads="text"),
)


def model_names() -> tuple[str, ...]:
    """The usual models; other widths and depths of the families can be named too."""
    return tuple(name for family in _FAMILIES for name in family.names)


def build(
    name: str, task: Task, seed: int, *, head: HeadInit = "gaussian", streams: int = 0
) -> nn.Module:
    """The model `name` for the inputs and classes of `task`, on the CPU, its weights from `seed`.

    The global random state is as it was afterwards. `head` is the start of the last layer
    (`initial.initialise`). A recurrent model carries the state of `streams` streams in training:
    the samples of a batch, of which each is the next part of the one in its place before.

    Raises:
        UserError: no such model, the nearest one is named; or one for other inputs.
    """
    for family in _FAMILIES:
        if (make := family.parse(name)) is not None:
            _check_inputs(name, family, task)
            return _seeded(make, task, seed, head, streams)
    raise unknown_name("model", name, model_names())


def _check_inputs(name: str, family: _Family, task: Task) -> None:
    given = "text" if task.card.sequential else "images"
    if family.reads != given:
        raise UserError(
            f"model {name} reads {family.reads}, but the task {task.name} gives {given}; "
            f"use {task.default_model}, or another task"
        )


def _seeded(make: Build, task: Task, seed: int, head: HeadInit, streams: int) -> nn.Module:
    # The CPU's generator alone: torch.manual_seed would seed the accelerators' as well.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        model = make(task)
        initialise(model, head)
    if isinstance(model, lstm.LSTM):
        model.carry(streams)
    return model
