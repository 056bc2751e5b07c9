"""Models by name: `small-cnn`, `small-cnn-WIDTH`, `mlp`, `resnetN`, `resnetN-identity`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from localsgd.names import unknown
from localsgd.tasks.models import mlp, resnet, small_cnn
from localsgd.tasks.models.decay import no_decay
from localsgd.tasks.models.initial import HeadInit, initialise
from localsgd.tasks.task import Task

__all__ = ["HeadInit", "build", "names", "no_decay"]

Build = Callable[[Task], nn.Module]

# A family turns a name into a way to build, or None where the name isn't one of its own.
_FAMILIES: tuple[Callable[[str], Build | None], ...] = (
    small_cnn.parse,
    mlp.parse,
    resnet.parse,
)


def names() -> tuple[str, ...]:
    """The usual models; other widths and depths of the families can be named too."""
    return (*small_cnn.NAMES, *mlp.NAMES, *resnet.NAMES)


def build(name: str, task: Task, seed: int, *, head: HeadInit = "gaussian") -> nn.Module:
    """The model `name` for the inputs and classes of `task`, on the CPU, its weights from `seed`.

    The global random state is as it was afterwards. `head` is the start of the last layer
    (`initial.initialise`).

    Raises:
        UserError: no such model; the nearest one is named.
    """
    for parse in _FAMILIES:
        if (make := parse(name)) is not None:
            return _seeded(make, task, seed, head)
    raise unknown("model", name, names())


def _seeded(make: Build, task: Task, seed: int, head: HeadInit) -> nn.Module:
    # The CPU's generator alone: torch.manual_seed would seed the accelerators' as well.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        model = make(task)
        initialise(model, head)
    return model
