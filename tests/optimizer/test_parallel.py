"""Tensor parallelism and pipelines inside workers, against workers of one rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from localsgd import LocalSGD, UserError, adacomm, post_local
from localsgd.reduce import CompressedMean, Sign
from localsgd.rows.shards import local
from tests.distributed.harness import run
from tests.optimizer.reference import assert_bits, assert_same
from tests.optimizer.sharded import (
    Values,
    halves,
    momentum,
    perceptron,
    pipeline_stage,
    train,
    whole,
)

STEPS = 7

CASES: dict[str, dict[str, Any]] = {
    "H = 1": {"local_steps": 1},
    "post-local": {"local_steps": post_local(3, after=2)},
    "DiLoCo": {"local_steps": 3, "outer": "diloco"},
}


class Block(nn.Module):
    """Two layers that tensor parallelism cuts, and one that it leaves whole on each rank."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        layers = perceptron(4, width, 4, 2)
        self.up, self.down, self.out = layers[0], layers[2], layers[4]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.down(torch.tanh(self.up(x))))


PLAN = {"up": ColwiseParallel, "down": RowwiseParallel}


def parallel(mesh: DeviceMesh, width: int = 6) -> nn.Module:
    return parallelize_module(Block(width), mesh, {name: style() for name, style in PLAN.items()})


def of_one_rank(
    cases: dict[str, dict[str, Any]], part: int | None, width: int = 6
) -> dict[str, Values]:
    found = {}
    for name, keywords in cases.items():
        model = Block(width)
        optimizer = LocalSGD(momentum(model), model, **keywords)
        train([optimizer], model, dist.get_rank(), range(STEPS), part)
        found[name] = whole(model)
    return found


def by_tensor(cases: dict[str, dict[str, Any]]) -> dict[str, Values]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "tp"))
    worker = mesh.get_local_rank("replicate")
    found = {}
    for name, keywords in cases.items():
        model = parallel(mesh["tp"])
        optimizer = LocalSGD(momentum(model), model, topology=mesh["replicate"], **keywords)
        train([optimizer], model, worker, range(STEPS), 0)
        found[name] = whole(model)
        assert_copies_equal(model, mesh["tp"])
    return found


def assert_copies_equal(model: nn.Module, mesh: DeviceMesh) -> None:
    """What ranks of a worker hold copies of is equal on them, bit for bit."""
    copies = {
        name: local(p).detach()
        for name, p in model.named_parameters()
        if not isinstance(p, DTensor) or p.placements[-1].is_replicate()
    }
    assert len(copies) == 3  # of `out`, and the bias of `down`
    found: list[Any] = [None] * mesh.size()
    dist.all_gather_object(found, copies, group=mesh.get_group())
    assert_bits(found[1], found[0])


def test_tensor_parallel_workers() -> None:
    more = {
        "one bit": {"local_steps": 2, "reducer": "ef-sign"},
        "one scale": {"local_steps": 2, "reducer": CompressedMean(Sign(scales="row"))},
    }
    one, two = run(2, of_one_rank, CASES, 0), run(4, by_tensor, {**CASES, **more})
    for rank, found in enumerate(two):
        for name in CASES:
            assert_same(found[name], one[rank // 2][name])


def by_shard_and_tensor(width: int) -> Values | str:
    """The weights after training; or what is said, where PyTorch gathers them wrong."""
    names = ("replicate", "shard", "tp")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=names)
    worker = mesh.get_local_rank("replicate")
    model = parallel(mesh["tp"], width)
    fully_shard(model, mesh=mesh["shard"])
    gathered, given = whole(model), whole(Block(width))
    keywords = {"topology": mesh["replicate"], **CASES["post-local"]}
    if not all(torch.equal(gathered[name], value) for name, value in given.items()):
        with pytest.raises(UserError) as caught:
            LocalSGD(momentum(model), model, **keywords)
        return str(caught.value)
    optimizer = LocalSGD(momentum(model), model, **keywords)
    train([optimizer], model, worker, range(STEPS), mesh.get_local_rank("shard"))
    return whole(model)


@pytest.mark.parametrize("width", [4, 6])
def test_three_axes(width: int) -> None:
    """Of 6, each rank of tensor parallelism has 3, which FSDP cuts unevenly."""
    cases = {"post-local": CASES["post-local"]}
    one, two = run(2, of_one_rank, cases, None, width), run(8, by_shard_and_tensor, width)
    for rank, found in enumerate(two):
        if isinstance(found, str):
            assert width == 6
            assert "up.weight (6, 4) is cut unevenly" in found
        else:
            assert_same(found, one[rank // 4]["post-local"])


def stages() -> tuple[dict[str, Values], str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "stage"))
    worker, index = mesh.get_local_rank("replicate"), mesh.get_local_rank("stage")
    found = {}
    for name, keywords in {**CASES, "by loss": {"local_steps": adacomm(3, period=3)}}.items():
        model = perceptron(4, 6, 4, 2)
        names = [[n for n, _ in model.named_parameters()][4 * index : 4 * index + 4]]
        part = nn.Sequential(*(model[:4] if index == 0 else model[4:]))
        stage = pipeline_stage(part, index, mesh["stage"].get_group())
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda found, y: (found - y).square().mean())
        optimizer = LocalSGD(momentum(part), part, topology=mesh["replicate"], **keywords)
        lengths = []
        for step in range(STEPS if name in CASES else 14):
            x, y = halves(worker, step)[0]
            optimizer.zero_grad()
            losses: list[Tensor] = []
            given = ((x,), {}) if index == 0 else ((), {"target": y, "losses": losses})
            schedule.step(*given[0], **given[1])
            if losses:
                optimizer.report_loss(torch.stack(losses).mean().detach() * 2.0**-step)
            optimizer.step()
            lengths.append(optimizer._loop.position.lengths[0])
        found[name] = dict(zip(*names, whole(part).values(), strict=True))
        if name not in CASES:
            everyone: list[Any] = [None] * 4
            dist.all_gather_object(everyone, lengths)
            assert everyone == [lengths] * 4
            assert len(set(lengths)) > 1
    return found, refused_scaler(mesh, part)


def refused_scaler(mesh: DeviceMesh, part: nn.Module) -> str:
    optimizer = LocalSGD(
        momentum(part), part, topology=mesh["replicate"], local_steps=2, start="broadcast"
    )
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(sum(p.sum() for p in part.parameters())).backward()
    with pytest.raises(UserError) as caught:
        scaler.step(optimizer)
    return str(caught.value)


def whole_pipeline(cases: dict[str, dict[str, Any]]) -> dict[str, Values]:
    found = {}
    for name, keywords in cases.items():
        model = perceptron(4, 6, 4, 2)
        optimizer = LocalSGD(momentum(model), model, **keywords)
        train([optimizer], model, dist.get_rank(), range(STEPS), 0)
        found[name] = whole(model)
    return found


def test_pipeline_stages() -> None:
    one, two = run(2, whole_pipeline, CASES), run(4, stages)
    for rank, (found, said) in enumerate(two):
        assert "GradScaler" in said
        for name in CASES:
            expected = one[rank // 2][name]
            assert_same(found[name], {n: v for n, v in expected.items() if n in found[name]})
