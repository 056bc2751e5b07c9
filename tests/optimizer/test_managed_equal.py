"""While nobody is lost, `fault_tolerance` gives the bits of a run without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import localsgd
from localsgd import LocalSGD
from localsgd.reduce import CompressedMean, OrderedMean, PowerSgd, Sign
from localsgd.schedule import Progress
from tests.distributed.harness import run
from tests.optimizer.hall import Hall, Member
from tests.optimizer.reference import assert_bits, loss_of, nesterov, net, values

STEPS = 11

OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "H = 1": lambda: {"local_steps": 1},
    "H = 4": lambda: {"local_steps": 4},
    "post-local": lambda: {"local_steps": localsgd.post_local(4, after=5)},
    "EF-sign": lambda: {"local_steps": 2, "reducer": "ef-sign"},
    "EF-sign in two phases": lambda: {
        "local_steps": 2,
        "reducer": CompressedMean(Sign(), way="two-phase"),
    },
    "DiLoCo": lambda: {"local_steps": 3, "outer": "diloco"},
    "SlowMo": lambda: {"local_steps": 3, "outer": "slowmo"},
    "momenta reset": lambda: {"local_steps": 2, "inner_state": "all=reset"},
    "H from the loss": lambda: {"local_steps": localsgd.plateau(4, 2, patience=1, threshold=0.9)},
    "H from a number of one's own": lambda: {"local_steps": OfReported()},
    "H from the learning rate": lambda: {"local_steps": localsgd.qsr(1, 0.15, longest=4)},
    "first decay": lambda: {"local_steps": localsgd.post_local(3)},
    "PowerSGD": lambda: {"local_steps": 2, "reducer": PowerSgd(rank=1)},
    "int8": lambda: {"local_steps": 2, "reducer": "int8"},
    "top-k": lambda: {"local_steps": 2, "reducer": "top-k"},
}


class OfReported:
    """H follows the mean over workers of a number that each has of its own."""

    sees = ("reported:wish",)

    def __call__(self, progress: Progress) -> int:
        wish = progress.reported.get("wish")
        return 1 if wish is None else round(2 * wish)


def trained(optimizer: LocalSGD, model: Any, worker: int) -> list[dict[str, Tensor]]:
    """The model after every step, and at the end."""
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(model, worker, step)
        loss.backward()
        optimizer.report_loss(loss)
        optimizer.report(wish=0.5 + worker)
        optimizer.step()
        if step == 3:
            optimizer.param_groups[0]["lr"] = 0.04
        found.append(values(model))
    optimizer.finish()
    return [*found, values(model)]


def plain(name: str, changes: dict[str, Any]) -> list[dict[str, Tensor]]:
    model = net()
    options = {"average": "models", **OPTIONS[name](), **changes}
    return trained(LocalSGD(nesterov(model), model, **options), model, dist.get_rank())


def managed(engine: Member, name: str, changes: dict[str, Any]) -> list[dict[str, Tensor]]:
    model = net()
    options = {**OPTIONS[name](), **changes}
    optimizer = LocalSGD(nesterov(model), model, fault_tolerance=engine, **options)
    assert optimizer.membership is not None
    return trained(optimizer, model, optimizer.membership.rank)


def check(workers: int, name: str, changes: dict[str, Any], planned: int | None) -> None:
    hall = Hall()
    names = [f"w{rank}" for rank in range(workers)]
    hall.start(lambda engine: managed(engine, name, changes), *names, workers=planned)
    found = hall.end()
    for rank, expected in enumerate(run(workers, plain, name, changes)):
        for own, theirs in zip(found[f"w{rank}"], expected, strict=True):
            assert_bits(own, theirs)
    first, *others = (found[one][-1] for one in names)
    assert all(torch.equal(first["0.weight"], other["0.weight"]) for other in others)


@pytest.mark.parametrize("name", OPTIONS)
def test_two_workers_have_the_same_bits_at_every_step(name: str) -> None:
    check(2, name, {}, planned=None)


@pytest.mark.parametrize("name", ["H = 4", "DiLoCo", "post-local"])
def test_any_number_has_them_with_an_ordered_mean(name: str) -> None:
    check(3, name, {"reducer": OrderedMean()}, planned=None)


@pytest.mark.parametrize("name", ["EF-sign in two phases", "int8"])
def test_any_number_has_them_with_compression_if_it_is_planned(name: str) -> None:
    """Chunks are cut as they are without, as rows have the same length."""
    check(4, name, {}, planned=4)
