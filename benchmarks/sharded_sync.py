"""Syncs of sharded workers: what a process of `benchmarks.sharded` does."""

from __future__ import annotations

from typing import Any, TypeAlias
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks import torchft_sync
from benchmarks.sync import slowest, sync_of, turns
from benchmarks.timing import Action, Times
from localsgd import LocalSGD
from localsgd.rows.shards import local

REFERENCE, CONTROL, OURS = "flat all-reduce", "flat all-reduce again", "LocalSGD"
DILOCO = "LocalSGD, DiLoCo"
ONE_BY_ONE = "one tensor at a time"
LAYERS = 4
Timed: TypeAlias = tuple[dict[str, Times], float]
"""Of each contestant; the bytes of ours for each byte of the shards."""


def model_of(width: int, mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)  # the same on all ranks
    layers = [nn.Linear(width, width) for _ in range(LAYERS)]
    for layer in layers:
        fully_shard(layer, mesh=mesh["shard"])
    return nn.Sequential(*layers)


@torch.no_grad()
def contestants(mesh: DeviceMesh, width: int) -> tuple[dict[str, Action], float]:
    """A sync of each, on memory of its own; the bytes of ours for each byte of the shards."""
    group, workers = mesh["replicate"].get_group(), mesh["replicate"].size()
    columns = mesh.mesh.T.tolist()
    new_group = dist.new_group

    def known(ranks: Any = None, **keywords: Any) -> Any:
        if ranks in columns:
            return group if dist.get_rank() in ranks else None
        return new_group(ranks, **keywords)

    def ours(**settings: Any) -> LocalSGD:
        model = model_of(width, mesh)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        settings = {"local_steps": 1, "average": "models", **settings}
        with mock.patch.object(dist, "new_group", known):
            return LocalSGD(inner, model, topology=mesh["replicate"], **settings)

    plain = ours()
    theirs = [local(p).clone() for p in plain.model.parameters()]
    size = sum(shard.numel() for shard in theirs)

    def one_by_one() -> None:
        for shard in theirs:
            copy = shard.clone()
            dist.all_reduce(copy, group=group)
            shard.copy_(copy.div_(workers))

    def flat_sum() -> Action:
        flat = torch.rand(size)

        def sum_and_divide() -> None:
            dist.all_reduce(flat, group=group)
            flat.div_(workers)

        return sum_and_divide

    sync = sync_of(plain)
    sync()
    sent = plain.ledger.bytes / (4 * size)
    return {
        REFERENCE: flat_sum(),
        CONTROL: flat_sum(),
        OURS: sync,
        DILOCO: sync_of(ours(outer="diloco")),
        ONE_BY_ONE: one_by_one,
        **torchft_sync.syncs(lambda: model_of(width, mesh), group),
    }, sent


def timed_here(width: int, seconds: float) -> Timed:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    actions, sent = contestants(mesh, width)
    return turns(actions, seconds, least=10), max(slowest([sent]))
