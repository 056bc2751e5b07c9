"""What the names in a run stand for: inner optimizers, reducers, outer optimizers, transforms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from localsgd.averaging import outer
from localsgd.averaging.outer import Outer
from localsgd.inner import LARS, Clip, GradientNoise, SignDescent, Transform
from localsgd.reduce import (
    BFloat16,
    CompressedMean,
    Compressor,
    ExactMean,
    Int8,
    MajorityVote,
    OrderedMean,
    PowerSgd,
    Reducer,
    Sign,
    TopK,
)
from localsgd.rows.layout import Layout
from localsgd.train.config.run import Run

MakeOptimizer = Callable[..., torch.optim.Optimizer]


def _lars(run: Run) -> MakeOptimizer:
    clip = run.optimizer == "larc"
    return partial(LARS, lr=1.0, momentum=run.momentum or 0.0, trust=run.trust, clip=clip)


# Fused: a row is stepped as one vector, and everything else makes temporaries of its length.
OPTIMIZERS: dict[str, Callable[[Run], MakeOptimizer]] = {
    "sgd": lambda run: partial(
        torch.optim.SGD,
        lr=1.0,
        momentum=run.momentum or 0.0,
        nesterov=run.nesterov and bool(run.momentum),
        fused=True,
    ),
    "adam": lambda run: partial(torch.optim.Adam, fused=True),
    "adamw": lambda run: partial(torch.optim.AdamW, fused=True),
    "lars": _lars,
    "larc": _lars,
    "sign": lambda run: partial(
        SignDescent,
        lr=1.0,
        momentum=run.momentum or 0.0,
        nesterov=run.nesterov and bool(run.momentum),
    ),
}

BY_TENSOR = ("lars", "larc")
"""Inner optimizers whose step of a scalar depends on the tensor that it is part of."""

COMPRESSORS: dict[str, Callable[[Run], Compressor]] = {
    "sign": lambda run: Sign(run.sign_scales),
    "ef-sign": lambda run: Sign(run.sign_scales),
    "int8": lambda run: Int8(),
    "top-k": lambda run: TopK(run.top_k_fraction),
    "bfloat16": lambda run: BFloat16(),
}

OUTERS: dict[str, Callable[[float | None, float | None, int], Outer]] = {
    "sgd": lambda lr, momentum, workers: outer.sgd(_or(lr, 1.0), _or(momentum, 0.0)),
    "block-momentum": lambda lr, momentum, workers: outer.block_momentum(
        _or(momentum, 0.3), _or(lr, 1.0)
    ),
    "slowmo": lambda lr, momentum, workers: outer.slowmo(_or(momentum, 0.5), _or(lr, 1.0)),
    "bmuf": lambda lr, momentum, workers: outer.bmuf(workers, momentum, _or(lr, 1.0)),
    "diloco": lambda lr, momentum, workers: outer.diloco(_or(lr, 0.7), _or(momentum, 0.9)),
}
"""From learning rate, momentum and the number of workers to an outer optimizer."""


def _or(value: float | None, usual: float) -> float:
    return usual if value is None else value


def mean_of(run: Run) -> Reducer:
    """The plain mean."""
    return OrderedMean() if run.reduction == "ordered" else ExactMean()


def reducer_of(run: Run, layout: Layout) -> Reducer:
    """Of the outermost level, whose links are the slowest."""
    name = run.compression or "none"
    if name == "none":
        return mean_of(run)
    if name == "majority":
        return MajorityVote(Sign(run.sign_scales), layout=layout)
    if name == "power-sgd":
        return PowerSgd(layout, run.power_sgd_rank, mean=mean_of(run), seed=run.seed)
    return CompressedMean(
        COMPRESSORS[name](run), feedback=name != "sign", way=run.compression_way, layout=layout
    )


def outer_of(run: Run) -> Outer | None:
    """Of the outermost level."""
    if run.outer in (None, "average"):
        return outer.average
    return OUTERS[run.outer](run.outer_lr, run.outer_momentum, run.workers or 1)


def transforms_of(run: Run) -> list[Transform]:
    """Of every worker's gradient, in the order in which they act."""
    found: list[Transform] = []
    if run.clip is not None:
        found.append(Clip(run.clip))
    if run.noise:
        found.append(GradientNoise(run.noise, run.noise_decay, run.seed))
    return found
