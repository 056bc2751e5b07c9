"""Models by name.

For images: `small-cnn`, `mlp`, `resnetN`, `resnetN-identity`, `densenetN-K`, `wrnN-K`,
`imagenet-resnetN`. For text: `lstm`, `lstm-LxD`, `lstm-tied`. These are initialised as the paper
says (`initial.py`). Models from outside start with the weights that they are made with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import nn

from localsgd.basics.options import check_usual, given_to
from localsgd.basics.outside import Outside
from localsgd.errors import UserError, short
from localsgd.train.data.models import (
    densenet,
    imagenet_resnet,
    lstm,
    mlp,
    resnet,
    small_cnn,
    wide_resnet,
)
from localsgd.train.data.models.decay import RULES, Rule, batch_norm, no_decay
from localsgd.train.data.models.initial import HeadInit, initialise
from localsgd.train.data.models.operations import count_operations
from localsgd.train.data.task import Task

__all__ = [
    "Build",
    "HeadInit",
    "Rule",
    "batch_norm",
    "build",
    "built",
    "count_operations",
    "decay_rule",
    "model_names",
    "no_decay",
]

Build = Callable[[Task], nn.Module]


@dataclass(frozen=True)
class _Family:
    """Models of one kind: `parse` turns a name into a way to build, or None if it isn't theirs."""

    parse: Callable[[str], Build | None]
    names: tuple[str, ...]
    reads: str = "images"

    def initialised(self, make: Build, head: HeadInit) -> Build:
        """`make`, with the paper's initial weights."""

        def made(task: Task) -> nn.Module:
            model = make(task)
            initialise(model, head)
            return model

        return made


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


def _check(what: str, part: Any) -> None:
    if not callable(part):
        raise UserError(
            f"{what} is {short(part)}; give a function from a Task to a torch.nn.Module"
        )


class _OwnNames(tuple[str, ...]):
    """The usual names; other widths and depths of the families are among them."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _family(name) is not None


OUTSIDE = Outside("model", "localsgd.models", lambda: _OwnNames(_own_names()), _check)
"""Of other packages: functions from the task to the model."""


def _own_names() -> tuple[str, ...]:
    return tuple(name for family in _FAMILIES for name in family.names)


def _family(name: str) -> tuple[_Family, Build] | None:
    found = ((family, family.parse(name)) for family in _FAMILIES)
    return next(((family, make) for family, make in found if make is not None), None)


def model_names() -> tuple[str, ...]:
    """The usual models; other widths and depths of the families can be named too."""
    return (*_own_names(), *OUTSIDE.names())


def decay_rule(name: str, model: str | None) -> Rule:
    """The rule of that name; `auto` is batch-norm for models of this package, usual for others.

    Args:
        model: the model's name; None for one that was given as an object.
    """
    if name == "auto":
        name = "batch-norm" if model is not None and _family(model) else "usual"
    return RULES[name]


def build(
    name: str,
    task: Task,
    seed: int,
    *,
    head: HeadInit = "gaussian",
    streams: int = 0,
    options: Iterable[str] = (),
) -> nn.Module:
    """The model `name` for the inputs and classes of `task`, on the CPU, its weights from `seed`.

    The global random state is as it was afterwards. `head` is the start of the last layer of this
    package's models (`initial.initialise`). A recurrent model carries the state of `streams`
    streams in training: the samples of a batch, of which each is the next part of the one in its
    place before. `options` are for models from outside, as `NAME.OPTION=VALUE`.

    Raises:
        UserError: no such model, the nearest one is named; or one for other inputs.
    """
    found = _family(name)
    if found is None:
        part = OUTSIDE[name]
        check_usual(name, part, list(signature(part).parameters)[:1])
        make = partial(part, **given_to(name, part, options))
        return built(make, task, seed, streams=streams, name=name)
    family, make = found
    _check_inputs(name, family, task)
    return built(family.initialised(make, head), task, seed, streams=streams)


def _check_inputs(name: str, family: _Family, task: Task) -> None:
    given = "text" if task.card.sequential else "images"
    if family.reads != given:
        raise UserError(
            f"model {name} reads {family.reads}, but the task {task.name} gives {given}; "
            f"use {task.default_model}, or another task"
        )


def built(make: Build, task: Task, seed: int, *, streams: int = 0, name: str = "") -> nn.Module:
    """`make(task)`, which draws from `seed`; its weights are left as they are.

    A recurrent model that has a method `carry` is told by `carry(streams)` how many streams go on
    from one batch to the next (as `lstm.LSTM`).
    """
    # The CPU's generator alone: torch.manual_seed would seed the accelerators' as well.
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)
        model = make(task)
    if not isinstance(model, nn.Module):
        what = f"the model {name}".strip()
        raise UserError(
            f"{what} is made as a value of type {type(model).__name__}; make a torch.nn.Module"
        )
    carry = getattr(model, "carry", None)
    if callable(carry):
        carry(streams)
    return model
