"""Equal workers in half precision stay where they are, whatever is averaged: to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from localsgd import LocalSGD
from localsgd.reduce import OrderedMean
from tests.distributed.harness import run

DTYPES = [torch.bfloat16, torch.float16]
HOW: dict[str, dict[str, Any]] = {
    "models": {"local_steps": 2},
    "ordered": {"local_steps": 2, "reducer": [OrderedMean()]},
    "gradients": {"local_steps": 1},
    "unequal blocks": {"local_steps": [1, 2], "topology": "1+2", "average": "models"},
    "a block": {"local_steps": [2, 2], "topology": "1x3"},
}


def moved(how: str, dtype: torch.dtype, ddp: bool = False) -> list[int]:
    """How many scalars of weights have moved after syncs of equal workers, while training and in
    the averaged model; and of gradients.
    """
    torch.manual_seed(0)
    model = nn.Linear(33, 65).to(dtype)
    wrapped = DistributedDataParallel(model) if ddp else model
    optimizer = LocalSGD(torch.optim.SGD(model.parameters(), lr=0.0), wrapped, **HOW[how])
    start = [p.detach().clone() for p in model.parameters()]
    x = torch.randn(1, 33).to(dtype)
    model(x).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    counts = []
    optimizer._gradients.watch = None  # It would say that all see the same batches.
    optimizer._gradients.set_lockstep(optimizer._gradients.lockstep)
    for _ in range(4):
        optimizer.zero_grad()
        wrapped(x).sum().backward()
        optimizer.average_gradients()
        averaged = [p.grad for p in model.parameters() if p.grad is not None]
        counts.append(differing(averaged, gradients))
        optimizer.step()
        counts.append(differing(list(model.parameters()), start))
    with optimizer.averaged_model():
        counts.append(differing(list(model.parameters()), start))
    optimizer.finish()
    counts.append(differing(list(model.parameters()), start))
    return counts


def differing(one: list[Any], other: list[Tensor]) -> int:
    return sum(int((a != b).sum()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("how", HOW)
def test_three_equal_workers_stay(how: str, dtype: torch.dtype) -> None:
    assert run(3, moved, how, dtype) == [[0] * 10] * 3


@pytest.mark.parametrize("dtype", DTYPES)
def test_their_gradients_stay_under_ddp(dtype: torch.dtype) -> None:
    assert run(3, moved, "gradients", dtype, True) == [[0] * 10] * 3
