"""Methods by name: how H, reducers and outer optimizers are chosen for every level.

A method is a combination of what the seams offer. To add one, add an entry; a new schedule, reducer
or outer optimizer is a file of its own. A schedule from outside the package is a method of its own
name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from localsgd.basics.options import made
from localsgd.basics.outside import Outside
from localsgd.errors import UserError, short
from localsgd.schedule.adaptive import adacomm, cyclic, decreasing, plateau, qsr, waiting_below
from localsgd.schedule.fixed import WarmupShape, every, post_local, warmup
from localsgd.schedule.progress import Schedule


@dataclass(frozen=True)
class Moments:
    """The points of a run that methods refer to, in local steps unless stated otherwise.

    Args:
        switch: the first step of the second phase.
        warmup_steps: the period of a local-step warm-up.
        warmup_shape: how H grows in it.
        lr_warmup_steps: of the learning rate.
        period: after which an adaptive H may change.
        alpha: of the quadratic rule, in units of the learning rate.
        waiting: the share of the time that may be spent waiting.
        cycle: of a cyclic learning rate.
        options: of schedules from outside, as `NAME.OPTION=VALUE`.
    """

    switch: int
    warmup_steps: int
    warmup_shape: WarmupShape
    lr_warmup_steps: int = 0
    period: int = 1
    alpha: float = 1.0
    waiting: float = 0.05
    cycle: int = 1
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Method:
    """A method of synchronisation.

    Args:
        title: a description for people.
        schedule: makes the schedule of one level from its H and the run's moments.
        several_levels: whether it needs more than one level.
        uses: the settings of the run that its schedule reads, of `local_steps`, `switch`,
            `step_warmup`, `adapt_every`, `qsr_alpha`, `waiting`, `lr_cycles`.
        preset: values of the run's settings that are not given.
        grows_batch: whether gradients are added up instead of local steps.
        one_level: whether it can have no more than one level.
    """

    title: str
    schedule: Callable[[int, Moments], Schedule]
    several_levels: bool = False
    uses: tuple[str, ...] = ("local_steps",)
    preset: Mapping[str, Any] = field(default_factory=dict)
    grows_batch: bool = False
    one_level: bool = False


def _local(local_steps: int, moments: Moments) -> Schedule:
    return every(local_steps)


def _post_local(local_steps: int, moments: Moments) -> Schedule:
    return post_local(local_steps, after=moments.switch)


_SWITCHED = ("local_steps", "switch")

METHODS = {
    "mini-batch": Method(
        "mini-batch SGD: all synchronise after every step", lambda h, at: every(1), uses=()
    ),
    "local": Method("local SGD: H local steps between syncs (Algorithm 1)", _local),
    "post-local": Method(
        "post-local SGD: H = 1 until the switch, then H (Algorithm 2)", _post_local, uses=_SWITCHED
    ),
    "local-warmup": Method(
        "local SGD whose H grows from 1 over a period (B.4.2)",
        lambda h, at: warmup(h, at.warmup_steps, at.warmup_shape),
        uses=("local_steps", "step_warmup"),
    ),
    "hierarchical": Method(
        "hierarchical local SGD: H inside a block, H^b rounds between blocks (Algorithm 5)",
        _local,
        several_levels=True,
    ),
    "hierarchical-post-local": Method(
        "hierarchical local SGD after the switch, mini-batch SGD before",
        _post_local,
        several_levels=True,
        uses=_SWITCHED,
    ),
    "sign": Method(
        "post-local signSGD: steps along signs, scaled signs of updates (Algorithm 3)",
        _post_local,
        uses=_SWITCHED,
        # The rate of the released code.
        preset={"compression": "sign", "optimizer": "sign", "lr": 0.01, "lr_scaling": "none"},
    ),
    "ef-sign": Method(
        "post-local EF-signSGD: signs with error feedback (Algorithm 4)",
        _post_local,
        uses=_SWITCHED,
        preset={"compression": "ef-sign"},
    ),
    "block-momentum": Method(
        "global momentum on the mean update, local momentum beside it (B.4.1)",
        _local,
        preset={"outer": "block-momentum"},
    ),
    "slowmo": Method(
        "SlowMo: slow momentum in units of gradients (Wang et al. 2020)",
        _local,
        preset={"outer": "slowmo"},
    ),
    "bmuf": Method(
        "BMUF: block momentum 1 - 1/K with Nesterov (Chen and Huo 2016)",
        _local,
        preset={"outer": "bmuf", "lr_scaling": "none"},
    ),
    "diloco": Method(
        "DiLoCo: AdamW inside, outer Nesterov 0.7/0.9 (Douillard et al. 2023)",
        _local,
        preset={"outer": "diloco", "optimizer": "adamw", "lr": 1e-3, "lr_scaling": "none"},
    ),
    "local-adam": Method(
        "local AdamW whose moments are averaged with the models",
        _local,
        preset={
            "optimizer": "adamw",
            "lr": 1e-3,
            "lr_scaling": "none",
            "inner_state": "exp_avg=average,exp_avg_sq=average",
        },
    ),
    "qsr": Method(
        "quadratic rule: H grows as the learning rate falls (Gu et al. 2024)",
        lambda h, at: qsr(h, at.alpha, at.lr_warmup_steps),
        uses=("local_steps", "qsr_alpha"),
        preset={"lr_schedule": "cosine"},
    ),
    "adacomm": Method(
        "AdaComm: H falls with the loss (Wang and Joshi 2019)",
        lambda h, at: adacomm(h, at.period),
        uses=("local_steps", "adapt_every"),
    ),
    "decreasing": Method(
        "H halves after every period (AdaComm's sequence, fixed)",
        lambda h, at: decreasing(h, at.period),
        uses=("local_steps", "adapt_every"),
    ),
    "plateau": Method(
        "post-local SGD that switches when the training loss stays",
        lambda h, at: plateau(h, at.period),
        uses=("local_steps", "adapt_every"),
    ),
    "waiting": Method(
        "the least H that keeps waiting under a share of the time",
        lambda h, at: waiting_below(at.waiting),
        uses=("waiting",),
    ),
    "cyclic": Method(
        "warm restarts; in every cycle H = 1 for its first half, then H",
        lambda h, at: cyclic(h, at.cycle, at.cycle // 2),
        uses=("local_steps", "lr_cycles"),
        preset={"lr_schedule": "cyclic"},
        one_level=True,
    ),
    "delayed": Method(
        "local SGD whose mean arrives a round late, while training goes on",
        _local,
        preset={"delay": 1},
    ),
    "streaming": Method(
        "the model is averaged in fragments, in turns, each a turn late (Streaming DiLoCo's "
        "schedule)",
        _local,
        preset={"fragments": 4, "delay": 1},
    ),
    "batch-growth": Method(
        "mini-batch SGD whose batch grows H-fold at the switch: the baseline to post-local SGD",
        _post_local,
        uses=_SWITCHED,
        grows_batch=True,
    ),
}


def _check(what: str, part: Any) -> None:
    if not (isinstance(part, Method) or callable(part)):
        raise UserError(
            f"{what} is {short(part)}; give a class whose values are schedules, a schedule, or a "
            "localsgd.train.Method"
        )


OUTSIDE = Outside("method", "localsgd.schedules", lambda: METHODS, _check)
"""Of other packages: classes of schedules, schedules, or methods."""


def method_names() -> tuple[str, ...]:
    """All methods."""
    return (*METHODS, *OUTSIDE.names())


def method(name: str) -> Method:
    """The method of that name."""
    return METHODS[name] if name in METHODS else _from_outside(name, OUTSIDE[name])


def _from_outside(name: str, part: Any) -> Method:
    """A class of schedules is made with the level's H, if it takes one as `local_steps`."""
    if isinstance(part, Method):
        return part
    title = ((part.__doc__ or "").strip() or f"the schedule {name}").splitlines()[0]
    if not isinstance(part, type):
        return Method(title, lambda h, at: part, uses=())
    takes = "local_steps" in inspect.signature(part).parameters
    return Method(
        title,
        lambda h, at: made(name, part, at.options, {"local_steps": h}),
        uses=("local_steps",) if takes else (),
    )
