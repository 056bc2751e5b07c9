"""Workers of several ranks: the weights that workers of one rank have, by no other messages."""

from __future__ import annotations

import functools
from typing import Any

import torch.distributed as dist

from localsgd import Delay, LocalSGD, post_local
from localsgd.reduce import OrderedMean, PowerSgd
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same
from tests.optimizer.sharded import (
    SHARDS,
    OfShards,
    Values,
    meshes,
    momentum,
    net,
    rank_of_worker,
    sharded,
    train,
    whole,
)
from tests.optimizer.test_ddp import calls_of

STEPS = 11

CASES: dict[str, dict[str, Any]] = {
    "H = 1": {"local_steps": 1},
    "H = 1, on models": {"local_steps": 1, "average": "models"},
    "H = 4": {"local_steps": 4},
    "post-local": {"local_steps": post_local(3, after=4)},
    "DiLoCo": {"local_steps": 3, "outer": "diloco"},
    "late means": {"local_steps": 2, "delay": Delay(syncs=1)},
    "momenta averaged": {"local_steps": 3, "inner_state": "all=average"},
    "momenta reset": {"local_steps": 3, "inner_state": "all=reset"},
    "ordered, H = 1": {"local_steps": 1, "reducer": OrderedMean()},
    "ordered, post-local": {"local_steps": post_local(3, after=4), "reducer": OrderedMean()},
}

BY_SHARD: dict[str, dict[str, Any]] = {
    "one bit": {"local_steps": 2, "reducer": "ef-sign"},
    "top-k": {"local_steps": 2, "reducer": "top-k"},
    "one bit, DiLoCo": {"local_steps": 2, "reducer": "ef-sign", "outer": "diloco"},
    "power-sgd": {"local_steps": 2, "reducer": PowerSgd(rank=1)},
    "fragments": {"local_steps": 2, "delay": Delay(fragments=2, syncs=1)},
}
"""What treats a shard as it treats a tensor, so that other shards give other weights."""


def shard_of(name: str, position: int | None) -> int | None:
    """Ranks of a worker see the same half if bits are compared, for the sum of their gradients."""
    return 0 if name.startswith("ordered") else position


def of_one_rank() -> dict[str, Values]:
    found = {}
    for name, keywords in CASES.items():
        model = net()
        optimizer = LocalSGD(momentum(model), model, **keywords)
        train([optimizer], model, dist.get_rank(), range(STEPS), shard_of(name, None))
        found[name] = whole(model)
    for name, keywords in BY_SHARD.items():
        shards = OfShards(net())
        optimizers = [LocalSGD(momentum(part), shards, **keywords) for part in shards.shards]
        train(optimizers, shards, dist.get_rank(), range(STEPS))
        found[name] = {n: value.detach() for n, value in shards.whole().items()}
    return found


def of_two_ranks() -> dict[str, Values]:
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    found = {}
    for name, keywords in {**CASES, **BY_SHARD}.items():
        model = sharded(net(), mesh)
        optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], **keywords)
        train([optimizer], model, worker, range(STEPS), shard_of(name, position))
        found[name] = whole(model)
    return found


def test_workers_of_two_ranks_have_the_weights_of_workers_of_one() -> None:
    one, two = run(2, of_one_rank), run(4, of_two_ranks)
    for rank, found in enumerate(two):
        for name, values in found.items():
            check = assert_bits if name.startswith("ordered") else assert_same
            check(values, one[rank // SHARDS][name])


TREES: dict[str, dict[str, Any]] = {
    "2 and 2": {"local_steps": [2, 2]},
    "from lockstep": {"local_steps": [1, post_local(2, after=4)]},
}


def blocks_of_one_rank() -> dict[str, Values]:
    found = {}
    for name, keywords in TREES.items():
        model = net()
        optimizer = LocalSGD(momentum(model), model, topology="2x2", **keywords)
        train([optimizer], model, dist.get_rank(), range(STEPS))
        found[name] = whole(model)
    return found


def blocks_of_two_ranks() -> dict[str, Values]:
    mesh = meshes(2, 2, SHARDS)
    worker, position = rank_of_worker()
    found = {}
    for name, keywords in TREES.items():
        model = sharded(net(), mesh)
        topology = mesh["outer", "replicate"]
        optimizer = LocalSGD(momentum(model), model, topology=topology, **keywords)
        train([optimizer], model, worker, range(STEPS), position)
        found[name] = whole(model)
    return found


def test_blocks_of_workers() -> None:
    one, two = run(4, blocks_of_one_rank), run(8, blocks_of_two_ranks)
    for rank, found in enumerate(two):
        for name, values in found.items():
            assert_same(values, one[rank // SHARDS][name])


def calls_by_phase() -> tuple[list[dict[str, int]], list[dict[str, int]]]:
    """Collectives of steps with H = 1, and in a local phase, beside those of FSDP alone."""
    mesh = meshes(2, SHARDS)
    worker, position = rank_of_worker()
    model = sharded(net(), mesh)
    optimizer = LocalSGD(
        momentum(model), model, topology=mesh["replicate"], local_steps=post_local(4, after=2)
    )

    def step(number: int) -> None:
        train([optimizer], model, worker, range(number, number + 1), position)

    alone = sharded(net(), mesh)
    plain = momentum(alone)

    def without(number: int) -> None:
        train([plain], alone, worker, range(number, number + 1), position)

    return (
        [calls_of(functools.partial(step, number)) for number in range(7)],
        [calls_of(functools.partial(without, number)) for number in range(2)],
    )


def test_nothing_crosses_between_workers_in_a_local_phase() -> None:
    for calls, (_, alone) in run(4, calls_by_phase):
        assert alone
        assert calls[2:5] == [alone] * 3
        assert calls[6] == alone
        more = {name: count - alone.get(name, 0) for name, count in calls[1].items()}
        # Of the hooks, one for each module; and one inside the worker, about what is finite.
        assert {n: count for n, count in more.items() if count} == {"c10d::allreduce_": 4}
        more = {name: count - alone.get(name, 0) for name, count in calls[5].items()}
        assert {n: count for n, count in more.items() if count} == {"c10d::allreduce_": 2}
