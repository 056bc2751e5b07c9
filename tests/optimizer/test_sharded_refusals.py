"""What can't work with workers of several ranks is refused in one line, on all ranks."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from localsgd import LocalSGD, UserError
from tests.distributed.harness import run
from tests.optimizer.sharded import SHARDS, meshes, momentum, net, perceptron, sharded, train


def local_sgd(model: nn.Module, topology: Any, local_steps: Any = 4) -> LocalSGD:
    return LocalSGD(momentum(model), model, local_steps=local_steps, topology=topology)


def on_both_axes(mesh: DeviceMesh) -> None:
    local_sgd(fully_shard(net(), mesh=mesh), mesh["replicate"])


def without_topology(mesh: DeviceMesh) -> None:
    local_sgd(fully_shard(net(), mesh=mesh["shard"]), None)


def as_four_workers(mesh: DeviceMesh) -> None:
    local_sgd(fully_shard(net(), mesh=mesh["shard"]), "2x2", [4, 4])


def as_two_workers_in_text(mesh: DeviceMesh) -> None:
    local_sgd(fully_shard(net(), mesh=mesh["shard"]), "2")


def with_ignored_parameter(mesh: DeviceMesh) -> None:
    model = net()
    fully_shard(model, mesh=mesh["shard"], ignored_params={model[0].bias})
    local_sgd(model, mesh["replicate"])


def without_shards(mesh: DeviceMesh) -> None:
    local_sgd(net(), mesh["replicate"])


def without_shards_as_sent_by_rank_0(mesh: DeviceMesh) -> None:
    model = net()
    across = mesh["replicate"]
    LocalSGD(momentum(model), model, local_steps=4, topology=across, start="broadcast")


def in_ddp(mesh: DeviceMesh) -> None:
    ddp = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(ddp)
    ddp.module = sharded(net(), mesh)  # PyTorch's own constructor may refuse it, by its version
    local_sgd(ddp, mesh["replicate"])


def in_fsdp1(mesh: DeviceMesh) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(net(), device_id=torch.device("cpu"))
    local_sgd(model, None)


def with_other_axes(mesh: DeviceMesh) -> None:
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("one", "two"))
    local_sgd(sharded(net(), mesh), mesh["replicate"] if dist.get_rank() else other["two"])


def along_shards(mesh: DeviceMesh) -> None:
    local_sgd(sharded(net(), mesh), mesh["shard"])


def on_the_whole_mesh(mesh: DeviceMesh) -> None:
    local_sgd(sharded(net(), mesh), mesh)


def with_the_state_of_another_shard(mesh: DeviceMesh) -> None:
    """While H = 1 momenta are equal on all workers, and shards differ."""
    model = sharded(perceptron(4, 6, 2), mesh)  # into shards of equal shapes
    optimizer = local_sgd(model, mesh["replicate"], 1)
    worker, shard = divmod(dist.get_rank(), SHARDS)
    train([optimizer], model, worker, range(2), shard)
    states: list[Any] = [None] * 4
    dist.all_gather_object(states, {**optimizer.state_dict(), "state": {}})
    other_worker = states[(1 - worker) * SHARDS + shard]
    optimizer.load_state_dict(other_worker)
    optimizer.load_state_dict(states[worker * SHARDS + 1 - shard])


def without_gradients(mesh: DeviceMesh) -> None:
    model = sharded(net(), mesh)
    model.set_requires_gradient_sync(False)
    train([local_sgd(model, mesh["replicate"])], model, 0, range(1), 0)


def with_unused_parameters(mesh: DeviceMesh) -> None:
    model = sharded(net(), mesh)
    optimizer = local_sgd(model, mesh["replicate"], 1)
    model[4].weight.requires_grad_(False)
    train([optimizer], model, 0, range(1), 0)


ACROSS = (
    'topology has the axis "shard" of the mesh, along which 0.weight is sharded inside workers; '
    'give the axes across workers alone: topology=mesh["replicate"]'
)

REFUSED = {
    on_both_axes: 'fully_shard mesh=mesh["shard"]',
    without_topology: 'topology=mesh["replicate"]',
    as_four_workers: 'topology=mesh["replicate"]',
    as_two_workers_in_text: 'topology=mesh["replicate"]',
    with_ignored_parameter: "ignored_params",
    without_shards: "hold the same whole model",
    without_shards_as_sent_by_rank_0: "hold the same whole model",
    in_ddp: "DistributedDataParallel",
    in_fsdp1: "FSDP1",
    along_shards: ACROSS,
    on_the_whole_mesh: ACROSS,
    with_the_state_of_another_shard: "its part of the model is another one than here",
    with_other_axes: "don't agree on who averages with whom",
    without_gradients: "set_requires_gradient_sync(False)",
    with_unused_parameters: "parameters without a gradient",
}


def refusals() -> list[str]:
    mesh = meshes(2, SHARDS)
    said = []
    with warnings.catch_warnings():
        # By FSDP1 of PyTorch 2.9, whenever the garbage collector comes to a model of it.
        warnings.filterwarnings("ignore", message="Deallocating Tensor")
        for wrong in REFUSED:
            with pytest.raises(UserError) as caught:
                wrong(mesh)
            said.append(str(caught.value))
    return said


def test_what_can_not_work_is_refused_on_all_ranks() -> None:
    for said in run(4, refusals):
        for found, words in zip(said, REFUSED.values(), strict=True):
            assert words in found
            assert "\n" not in found
