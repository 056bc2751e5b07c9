"""A deleted `LocalSGD` leaves neither models nor threads in the process."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from localsgd import Delay, LocalSGD, post_local
from localsgd.errors import UserError
from localsgd.optimizer.ddp import quieten
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net
from tests.optimizer.sharded import SHARDS, meshes, momentum, rank_of_worker, sharded, train
from tests.optimizer.sharded import net as wide

CASES: Mapping[str, dict[str, Any]] = {
    "local": {"local_steps": 2},
    "gradients": {"local_steps": 1},
    "post-local": {"local_steps": post_local(2)},
    "blocks": {"local_steps": [1, 2], "topology": "1x2"},
    "compressed": {"local_steps": 2, "reducer": "ef-sign", "outer": "diloco"},
    "late": {"local_steps": 2, "delay": Delay(2, syncs=1)},
    "state": {"local_steps": 2, "inner_state": "all=average"},
}


def threads() -> int:
    return len(os.listdir("/proc/self/task")) if Path("/proc/self/task").is_dir() else 0


def one_after_another(wrapped: bool, keywords: dict[str, Any]) -> None:
    """The second in the same model is as the first."""
    for _ in range(2):
        model: nn.Module = DistributedDataParallel(net()) if wrapped else net()
        for _ in range(2):
            train_once(model, keywords)
        seen = ref(model)
        del model
        gc.collect()
        assert seen() is None


def train_once(model: nn.Module, keywords: dict[str, Any]) -> None:
    before = threads()
    inner = nesterov(model)
    optimizer = LocalSGD(inner, model, **keywords)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, dist.get_rank(), step).backward()
        optimizer.step()
    with optimizer.averaged_model():
        pass
    optimizer.finish()
    seen = ref(inner), ref(optimizer)
    del inner, optimizer
    gc.collect()
    assert [each() for each in seen] == [None, None]
    assert threads() == before


@pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "DDP"])
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_left(case: str, wrapped: bool) -> None:
    run(2, one_after_another, wrapped, CASES[case])


def workers_of_two() -> None:
    mesh = meshes(2, SHARDS)
    for keywords in ({"local_steps": 2}, {"local_steps": 1}):
        model = sharded(wide(), mesh)
        inner = momentum(model)
        optimizer = LocalSGD(inner, model, topology=mesh["replicate"], **keywords)
        worker, position = rank_of_worker()
        train([optimizer], model, worker, range(3), position)
        optimizer.finish()
        seen = ref(inner), ref(optimizer)
        del inner, optimizer
        gc.collect()
        assert [each() for each in seen] == [None, None]


def test_nothing_is_left_of_workers_of_two_ranks() -> None:
    run(4, workers_of_two)


def refused() -> None:
    before = threads()
    for _ in range(3):
        model = net()
        inner = nesterov(model)
        with torch.no_grad():
            model[0].weight += dist.get_rank()
        with pytest.raises(UserError, match="differ in starting weights"):
            LocalSGD(inner, model, local_steps=2)
        seen = ref(inner), ref(model)
        del inner, model
        gc.collect()
        assert [each() for each in seen] == [None, None]
    assert threads() == before


def test_nothing_is_left_of_one_that_is_refused() -> None:
    run(2, refused)


class Owner:
    """Something that needs a DDP quiet."""


def one_of_two_owners() -> list[bool]:
    model, owners = DistributedDataParallel(net()), [Owner(), Owner()]
    for owner in owners:
        quieten(model, owner)
    del owner
    found = []
    while owners:
        del owners[0]
        gc.collect()
        found.append(model.require_backward_grad_sync)
    return found


def a_copy() -> tuple[bool, bool]:
    model = DistributedDataParallel(net())
    twin, other = copy.deepcopy((model, LocalSGD(nesterov(model), model, local_steps=2)))
    del other
    gc.collect()
    return twin.require_backward_grad_sync, twin.broadcast_buffers


def test_a_copied_ddp_is_as_the_first_was_before() -> None:
    assert run(2, a_copy) == [(True, True)] * 2


def test_a_ddp_is_quiet_until_the_last_of_its_owners_is_gone() -> None:
    assert run(2, one_of_two_owners) == [[False, True]] * 2


def on_without_it(case: dict[str, Any]) -> torch.Tensor:
    """A DDP whose `LocalSGD` is deleted averages gradients as any other."""
    model = DistributedDataParallel(net())
    train_once(model, case)
    assert (model.broadcast_buffers, "join_hook" in vars(model)) == (True, False)
    model.zero_grad()
    loss_of(model, dist.get_rank(), 9).backward()
    found = model.module[0].weight.grad.clone()
    alone = net()
    alone.load_state_dict(model.module.state_dict())
    gradients = []
    for worker in range(dist.get_world_size()):
        alone.zero_grad()
        loss_of(alone, worker, 9).backward()
        gradients.append(alone[0].weight.grad.clone())
    return (found - torch.stack(gradients).mean(0)).abs().max()


def test_ddp_goes_on_without_it() -> None:
    for gap in run(2, on_without_it, {"local_steps": 1}):
        assert gap <= 1e-15
