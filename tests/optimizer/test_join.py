"""`torch.distributed.algorithms.Join` around an optimizer or its DDP model is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from localsgd import LocalSGD, UserError
from tests.distributed.harness import run
from tests.optimizer.reference import loss_of, nesterov, net

pytestmark = pytest.mark.timeout(120)


def refusals(local_steps: int) -> list[str]:
    """Of all ways in which people write it; then a step, which works as before."""
    ddp = DistributedDataParallel(net())
    optimizer = LocalSGD(nesterov(ddp), ddp, local_steps=local_steps)
    ways: list[Any] = [
        lambda: Join([optimizer]),
        lambda: Join([ddp]),
        lambda: Join([ddp, optimizer], divide_by_initial_world_size=False),
        ddp.join,
    ]
    said = []
    for way in ways:
        with pytest.raises(UserError) as caught, way():
            pass
        said.append(str(caught.value))
    copied = pickle.loads(pickle.dumps(copy.deepcopy(ddp)))
    assert torch.equal(copied.module[0].weight, ddp.module[0].weight)
    loss_of(ddp, dist.get_rank(), 0).backward()
    optimizer.step()
    return said


@pytest.mark.parametrize("local_steps", [1, 4])
def test_join_is_refused_with_the_way_out(local_steps: int) -> None:
    for said in run(2, refusals, local_steps):
        assert len(set(said)) == 1
        assert said[0].startswith("torch.distributed.algorithms.Join can't be used with LocalSGD")
        assert "DistributedSampler(drop_last=True), and call finish() on all" in said[0]
        assert "\n" not in said[0]


def unwrapped() -> str:
    """A model in DDP that is no business of LocalSGD keeps its own way to join."""
    ddp = DistributedDataParallel(net())
    with ddp.join():
        loss_of(ddp, 0, 0).backward()
    return ""


def test_a_model_that_local_sgd_was_not_given_joins_as_ever() -> None:
    assert run(2, unwrapped) == ["", ""]
