"""Workers stepped together take the very steps that each takes alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from localsgd.inner import SignDescent
from localsgd.train.engine.hosted import Inner, Workers
from tests.problems import loss_on, net, no_decay

Make = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(torch.optim.SGD, lr=1.0, fused=True),
    "nesterov": partial(torch.optim.SGD, lr=1.0, momentum=0.9, nesterov=True, fused=True),
    "adam": partial(torch.optim.Adam, fused=True),
    "adamw": partial(torch.optim.AdamW, fused=True),
    "sign": partial(SignDescent, momentum=0.9),
}


def loss(model: nn.Module, worker: int, step: int) -> Tensor:
    return loss_on(model, torch.arange(4) + 10 * worker + step)


def hosted(make: Make, dtype: torch.dtype = torch.float64, **options: Any) -> Workers:
    model = net("conv", dtype)
    inner = Inner(make, weight_decay=0.1, no_decay=no_decay(model))
    return Workers(model, loss, inner, range(3), **options)


def alone(workers: Workers) -> Workers:
    """The same workers, each stepped by its own optimizer."""
    workers._together = None
    return workers


def train(workers: Workers, steps: int = 5) -> None:
    for step in range(steps):
        workers.backward()
        workers.apply(0.1 / (1 + step))


def states(workers: Workers) -> list[Any]:
    return [copy.deepcopy(workers.optimizers[row].state_dict()["state"]) for row in range(3)]


def same(one: Workers, other: Workers) -> None:
    assert torch.equal(one.params, other.params)
    for left, right in zip(states(one), states(other), strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_same_bits_as_one_by_one(name: str, dtype: torch.dtype) -> None:
    together, apart = hosted(OPTIMIZERS[name], dtype), alone(hosted(OPTIMIZERS[name], dtype))
    assert together._together is not None
    train(together)
    train(apart)
    same(together, apart)
    assert not torch.equal(together.params[0], together.params[1])


@pytest.mark.parametrize("name", ["nesterov", "adam"])
def test_workers_that_sit_out_keep_their_model_and_state(name: str) -> None:
    def taking(worker: int, steps: list[int]) -> bool:
        # From the very first step on, so that some have a state before others.
        return (worker, len(steps)) not in ((1, 0), (2, 1), (0, 3))

    pair = []
    for change in (lambda workers: workers, alone):
        steps: list[int] = []
        workers = change(hosted(OPTIMIZERS[name], active=partial(taking, steps=steps)))
        for step in range(6):
            rested = workers.params.clone()
            workers.backward()
            workers.apply(0.1)
            for worker in range(3):
                stayed = torch.equal(workers.params[worker], rested[worker])
                assert stayed != taking(worker, steps)
            steps.append(step)
        assert workers.taken == [5, 5, 5]
        pair.append(workers)
    same(*pair)


def test_a_loaded_worker_goes_on_from_its_own_state() -> None:
    make = OPTIMIZERS["nesterov"]
    first, second = hosted(make), hosted(make)
    train(first, 3)
    for row in range(3):
        second.load(row, copy.deepcopy(first.state(row)))
    for workers in (first, second):
        train(workers, 2)
    same(first, second)


def test_states_changed_by_worker_are_those_that_step() -> None:
    make = OPTIMIZERS["nesterov"]
    together, apart = hosted(make), alone(hosted(make))
    for workers in (together, apart):
        train(workers, 2)
        for state in workers.optimizers[1].state.values():
            state["momentum_buffer"].zero_()
        train(workers, 2)
    same(together, apart)


def test_those_who_watch_are_told_around_each_step() -> None:
    workers = hosted(OPTIMIZERS["sgd"])
    seen: list[bool] = []
    before = workers.params.clone()
    workers.around_steps(
        lambda: seen.append(torch.equal(workers.params, before)),
        lambda: seen.append(not torch.equal(workers.params, before)),
    )
    train(workers, 1)
    assert seen == [True, True]
