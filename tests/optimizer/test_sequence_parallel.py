"""Gradients that are parts of a sum (`Partial`), as sequence parallelism leaves them."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import localsgd
from localsgd import LocalSGD
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same
from tests.optimizer.sharded import Values, whole

HALVES = 2


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8, bias=False)).double()


def made() -> tuple[nn.Sequential, LocalSGD, int, int]:
    """Two workers of two ranks, which share a sequence: model, optimizer, worker, half."""
    mesh = init_device_mesh("cpu", (2, HALVES), mesh_dim_names=("replicate", "tp"))
    model = net()
    column = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(model, mesh["tp"], {"0": SequenceParallel(), "1": column})
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = LocalSGD(inner, model, local_steps=1, topology=mesh["replicate"])
    worker, half = divmod(dist.get_rank(), HALVES)
    return model, optimizer, worker, half


def batch(worker: int, step: int) -> Tensor:
    draw = torch.Generator().manual_seed(10 * worker + step)
    return torch.randn(2, 4, 8, generator=draw, dtype=torch.float64)


def loss_of(model: nn.Sequential, x: Tensor, *, normed: bool) -> Tensor:
    return model[1](model[0](x) if normed else x).square().sum()


def own(x: Tensor, half: int) -> Tensor:
    return x.chunk(HALVES, dim=1)[half].contiguous()


def one_worker_without_the_norm() -> tuple[Values, Tensor]:
    """Weights after a step in which worker 1 has no gradient of the norm; this rank's norm."""
    model, optimizer, worker, half = made()
    loss_of(model, own(batch(worker, 0), half), normed=worker == 0).backward()
    optimizer.step()
    return whole(model), model[0].weight.to_local().detach()  # type: ignore[union-attr]


def test_a_worker_that_lacks_a_gradient_gets_the_whole_mean() -> None:
    model = net()
    for worker in range(2):
        (loss_of(model, batch(worker, 0), normed=worker == 0) / 2).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    expected = whole(model)
    for found, norm in run(2 * HALVES, one_worker_without_the_norm):
        assert_same(found, expected)
        assert_same({"0.weight": norm}, {"0.weight": expected["0.weight"]})


def saved_between(folder: Path) -> tuple[Values, Values]:
    """Weights after a step whose second micro-batch came after a save: going on, and resumed."""
    model, optimizer, worker, half = made()
    loss_of(model, own(batch(worker, 1), half), normed=True).backward()
    localsgd.save(folder, model, optimizer)
    again, resumed, *_ = made()
    localsgd.load(folder, again, resumed)
    for one, its in ((model, optimizer), (again, resumed)):
        loss_of(one, own(batch(worker, 2), half), normed=True).backward()
        its.step()
    return whole(model), whole(again)


def test_it_can_be_saved_between_two_micro_batches(tmp_path: Path) -> None:
    model = net()
    for worker in range(2):
        for step in (1, 2):
            (loss_of(model, batch(worker, step), normed=True) / 2).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for found, resumed in run(2 * HALVES, saved_between, tmp_path / "save"):
        assert_bits(resumed, found)
        assert_same(found, whole(model))
