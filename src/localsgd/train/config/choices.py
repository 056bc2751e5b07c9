"""What a run asks for, made: inner optimizers, reducers, outer optimizers, transforms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from localsgd.averaging.gossip import RING, Mixing, Pairs
from localsgd.averaging.outer import Outer, outer_named
from localsgd.inner import LARS, Clip, GradientNoise, SignDescent, Transform
from localsgd.reduce import Options, Reducer, reducer_named
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


def mean_of(run: Run) -> Reducer:
    """The plain mean."""
    return reducer_named(run.reduction)


def reducer_of(run: Run, layout: Layout) -> Reducer:
    """The reducer of the outermost level, whose links are the slowest."""
    options = Options(
        mean=run.reduction,
        scales=run.sign_scales,
        fraction=run.top_k_fraction,
        way=run.compression_way,
        rank=run.power_sgd_rank,
        seed=run.seed,
        own=run.options,
    )
    return reducer_named(run.compression or "none", options).bound(layout)


def outer_of(run: Run) -> Outer | None:
    """The outer optimizer of the outermost level."""
    return outer_named(
        run.outer or "average",
        run.workers or 1,
        learning_rate=run.outer_lr,
        momentum=run.outer_momentum,
        options=run.options,
    )


def mixing_of(run: Run) -> Mixing | None:
    """Who averages with whom at the outermost level; None if all do with all."""
    return {"all": None, "ring": RING, "pairs": Pairs(run.seed)}[run.neighbours]


def transforms_of(run: Run) -> list[Transform]:
    """The transforms of every worker's gradient, in the order in which they are applied."""
    found: list[Transform] = []
    if run.clip is not None:
        found.append(Clip(run.clip))
    if run.noise:
        found.append(GradientNoise(run.noise, run.noise_decay, run.seed))
    return found
