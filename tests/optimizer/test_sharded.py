"""Workers of several ranks: the weights that workers of one rank have, by no other messages."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from localsgd import Delay, LocalSGD, post_local
from localsgd.reduce import OrderedMean
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same
from tests.optimizer.sharded import (
    Values,
    even,
    meshes,
    momentum,
    rank_of_worker,
    sharded,
    train,
    uneven,
    whole,
)

STEPS = 11
adam = partial(torch.optim.AdamW, lr=0.05)

CASES: dict[str, dict[str, Any]] = {
    "H = 1": {"local_steps": 1},
    "H = 1, on models": {"local_steps": 1, "average": "models"},
    "H = 4": {"local_steps": 4},
    "post-local": {"local_steps": post_local(3, after=4)},
    "DiLoCo": {"local_steps": 3, "outer": "diloco"},
    "delay and fragments": {"local_steps": 2, "delay": Delay(fragments=2, syncs=1)},
    "momenta averaged": {"local_steps": 3, "inner_state": "all=average"},
    "momenta reset": {"local_steps": 3, "inner_state": "all=reset"},
}


def of_one_rank(same: bool) -> dict[str, Values]:
    found = {}
    for name, keywords in CASES.items():
        for build in (even, uneven):
            model = build()
            if same:
                keywords = {**keywords, "reducer": OrderedMean()}
            optimizer = LocalSGD(momentum(model), model, **keywords)
            train(optimizer, model, dist.get_rank(), range(STEPS), 0 if same else None)
            optimizer.finish()
            found[f"{name}, {build.__name__}"] = whole(model)
    return found


def of_two_ranks(same: bool) -> dict[str, Values]:
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    found = {}
    for name, keywords in CASES.items():
        for build in (even, uneven):
            model = sharded(build(), mesh)
            if same:
                keywords = {**keywords, "reducer": OrderedMean()}
            optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], **keywords)
            train(optimizer, model, worker, range(STEPS), 0 if same else position)
            optimizer.finish()
            found[f"{name}, {build.__name__}"] = whole(model)
    return found


SHARDS = 2


def test_workers_of_two_ranks_have_the_weights_of_workers_of_one() -> None:
    for same in (False, True):
        one, two = run(2, of_one_rank, same), run(4, of_two_ranks, same)
        check = assert_bits if same else assert_same
        for rank, found in enumerate(two):
            for name, values in found.items():
                check(values, one[rank // SHARDS][name])
