"""A sync of sharded workers against one flat all-reduce of the shards.

Two workers of two shards each, on gloo over loopback. Beside it, torchft's LocalSGD and DiLoCo if
torchft is installed, which send a message for each tensor and copy it there and back; and the least
that this takes, one tensor at a time. Our DiLoCo is timed as well. All use one process group across
workers. It needs a machine that does nothing else: four processes on two cores wait for each other.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks import crew, torchft_sync
from benchmarks.report import Finding, publish, timed
from benchmarks.sync import slowest, sync_of, turns
from benchmarks.timing import Action, Times
from localsgd import LocalSGD
from localsgd.rows.shards import local

SECONDS = 40.0
REFERENCE, CONTROL, OURS = "flat all-reduce", "flat all-reduce again", "LocalSGD"
DILOCO = "LocalSGD, DiLoCo"
ONE_BY_ONE = "one tensor at a time"
BOUNDS = {"even": 1.05, "uneven": 1.3}
WIDTHS = {"even": 2048, "uneven": 2047}
LAYERS = 4


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


def timed_here(width: int, seconds: float) -> tuple[dict[str, Times], float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    actions, sent = contestants(mesh, width)
    return turns(actions, seconds, least=10), max(slowest([sent]))


def measure(seconds: float = SECONDS) -> list[Finding]:
    findings = []
    for name, bound in BOUNDS.items():
        times, sent = crew.run(4, timed_here, WIDTHS[name], seconds)
        case = f"{name} shards"
        findings += timed(case, times, REFERENCE, {OURS: bound})
        cells = {"ratio": f"[bold]{sent:.4f}[/]", "ms": "bytes"}
        findings.append(Finding(case, f"{OURS}, bytes", cells, {"bytes": sent}, sent, 1.01))
    return findings


def main() -> bool:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual seconds")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not torchft_sync.THERE:
        print("torchft is not installed, so its LocalSGD and DiLoCo are left out")
    return publish("sharded", "A sync of sharded workers", measure(options.share * SECONDS))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
