"""Outer optimizers: what a sync does with the mean update.

An outer optimizer works on the anchor, with the mean update as its gradient. `average` uses no
optimizer: the anchor becomes the mean of the members, as with `SGD(lr=1)`, but no anchor is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer

from localsgd.basics.options import check_usual, given_to, made
from localsgd.basics.outside import Outside
from localsgd.errors import UserError, short
from localsgd.inner.validation import check_momentum


@dataclass(frozen=True)
class Outer:
    """An outer optimizer for the anchor of a level.

    Args:
        optimizer: makes a `torch.optim.Optimizer` of a list of parameters, usually a
            `functools.partial`.
        per_learning_rate: use mean update / γ as the gradient and scale the learning rate by γ, the
            inner learning rate at the first step of the round. The state is then in units of
            gradients, and stays right while γ changes.
    """

    optimizer: Callable[[Any], Optimizer]
    per_learning_rate: bool = False


average: None = None
"""Plain averaging: the anchor becomes the mean of the members."""


def sgd(learning_rate: float = 1.0, momentum: float = 0.0, nesterov: bool = False) -> Outer:
    """w ← w − η u with u ← m u + mean Δ: outer SGD on the mean update Δ."""
    check_momentum(momentum, "an outer momentum")
    if nesterov and not momentum:
        raise UserError("Nesterov momentum needs a momentum, which is 0; give one in (0, 1)")
    return Outer(partial(torch.optim.SGD, lr=learning_rate, momentum=momentum, nesterov=nesterov))


def block_momentum(momentum: float, learning_rate: float = 1.0) -> Outer:
    """Global momentum: u ← m u + mean Δ/γ, w ← w − η γ u, γ of the round's first step.

    (Lin et al. 2020, appendix B.4.1, with η = 1.) Together with local momentum it is the paper's
    hybrid momentum. It multiplies the total effect of a gradient by 1/(1 − m), on top of what local
    momentum does, which is why m >= 0.7 with a local momentum of 0.9 diverges at learning rates
    that were tuned without it.
    """
    check_momentum(momentum, "an outer momentum")
    return Outer(
        partial(torch.optim.SGD, lr=learning_rate, momentum=momentum), per_learning_rate=True
    )


def slowmo(momentum: float = 0.5, learning_rate: float = 1.0) -> Outer:
    """SlowMo: u ← β u + mean Δ/γ, w ← w − α γ u (Wang, Tantia, Ballas, Rabbat 2020, Algorithm 1).

    β = 0, α = 1 is local SGD; α = 1 is block momentum.
    """
    return block_momentum(momentum, learning_rate)


def bmuf(workers: int, momentum: float | None = None, learning_rate: float = 1.0) -> Outer:
    """Blockwise model-update filtering with Nesterov block momentum (Chen and Huo 2016).

        Δ ← η Δ + ζ (mean w_k − v),   v ← v + ζ (mean w_k − v) + η Δ,   v is shared

    Args:
        workers: K; η = 1 − 1/K if no `momentum` is given. The sum over rounds then makes up for the
            mean over workers, so that the inner learning rate is that of a single worker.
        momentum: η.
        learning_rate: ζ.
    """
    chosen = 1 - 1 / workers if momentum is None else momentum
    return sgd(learning_rate, chosen, nesterov=chosen > 0)


def diloco(learning_rate: float = 0.7, momentum: float = 0.9) -> Outer:
    """DiLoCo's outer Nesterov momentum on the mean update (Douillard et al. 2023, Algorithm 1).

    Its inner optimizer is AdamW.
    """
    return sgd(learning_rate, momentum, nesterov=True)


def _or(value: float | None, usual: float) -> float:
    return usual if value is None else value


OUTERS: Mapping[str, Callable[[float | None, float | None, int], Outer | None]] = {
    "average": lambda lr, momentum, workers: average,
    "sgd": lambda lr, momentum, workers: sgd(_or(lr, 1.0), _or(momentum, 0.0)),
    "block-momentum": lambda lr, momentum, workers: block_momentum(
        _or(momentum, 0.3), _or(lr, 1.0)
    ),
    "slowmo": lambda lr, momentum, workers: slowmo(_or(momentum, 0.5), _or(lr, 1.0)),
    "bmuf": lambda lr, momentum, workers: bmuf(workers, momentum, _or(lr, 1.0)),
    "diloco": lambda lr, momentum, workers: diloco(_or(lr, 0.7), _or(momentum, 0.9)),
}
"""Makers by name: they take learning rate, momentum (None: the usual one) and K."""


def _check(what: str, part: Any) -> None:
    if not callable(part):
        raise UserError(
            f"{what} is {short(part)}; give a torch.optim.Optimizer class, or a function that "
            "makes an Outer"
        )


OUTSIDE = Outside("outer optimizer", "localsgd.outers", lambda: OUTERS, _check)
"""Outer optimizers of other packages: optimizer classes, or functions that make an `Outer`."""


def outer_named(
    name: str,
    workers: int,
    *,
    learning_rate: float | None = None,
    momentum: float | None = None,
    options: Sequence[str] = (),
) -> Outer | None:
    """The outer optimizer of that name.

    Args:
        workers: K, by which `bmuf` chooses its momentum.
        learning_rate, momentum: its usual ones where not given.
        options: of one from outside, as `NAME.OPTION=VALUE`.
    """
    if name in OUTERS:
        return OUTERS[name](learning_rate, momentum, workers)
    part = OUTSIDE[name]
    _check_takes(name, part, {"lr": learning_rate, "momentum": momentum})
    if isinstance(part, type) and issubclass(part, Optimizer):
        return _of_class(name, part, learning_rate, momentum, options)
    rates = {"learning_rate": learning_rate, "lr": learning_rate, "momentum": momentum}
    found = made(name, part, options, {**rates, "workers": workers})
    if isinstance(found, Outer):
        return found
    raise UserError(f"{name} makes a {type(found).__name__}, which is no localsgd.outer.Outer")


def _check_takes(name: str, part: Callable[..., Any], given: Mapping[str, float | None]) -> None:
    """Refuses numbers that the part would not look at."""
    takes = inspect.signature(part).parameters
    if any(one.kind is one.VAR_KEYWORD for one in takes.values()):
        return
    for what, value in given.items():
        known = {what, "learning_rate"} if what == "lr" else {what}
        if value is not None and not known & takes.keys():
            raise UserError(f"{name} has no {what}, and {value:g} was given; leave it out")


def _of_class(
    name: str,
    part: type[Optimizer],
    learning_rate: float | None,
    momentum: float | None,
    options: Sequence[str],
) -> Outer:
    rates = {"lr": learning_rate, "momentum": momentum}
    given = given_to(name, part, options)
    chosen = {key: value for key, value in rates.items() if value is not None} | given
    check_usual(name, part, {"params", *chosen})
    return Outer(partial(part, **chosen))


def as_outer(given: object, workers: int) -> Outer | None:
    """What a user gives as one: a name, an `Outer`, a partial of an optimizer, or None."""
    if given is None or isinstance(given, Outer):
        return given
    if isinstance(given, str):
        return outer_named(given, workers)
    made = given.func if isinstance(given, partial) else None
    if isinstance(given, partial) and isinstance(made, type) and issubclass(made, Optimizer):
        return Outer(given)
    raise UserError(
        f'{short(given)} is no outer optimizer; give a name such as "diloco", one of '
        "localsgd.outer, functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9), or None for "
        "plain averaging"
    )
