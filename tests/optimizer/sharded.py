"""The same training with workers of one rank, and with workers of several.

Worker k's batch at a step has two halves. A rank of a sharded worker sees its half; a worker of one
rank sees both.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import DTensor

from localsgd import LocalSGD

SHARDS = 2

Values = dict[str, Tensor]


def perceptron(*widths: int) -> nn.Sequential:
    """In float64, the same for everybody."""
    generator = torch.Generator().manual_seed(7)
    pairs = itertools.pairwise(widths)
    layers: list[nn.Module] = []
    for wide, narrow in pairs:
        layers += [nn.Linear(wide, narrow), nn.Tanh()]
    model = nn.Sequential(*layers).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def net() -> nn.Sequential:
    """Shards of 3 and 3, of 2 and 1, and of 1 and none."""
    return perceptron(4, 6, 3, 1)


def meshes(*sizes: int) -> DeviceMesh:
    """Blocks of workers, outermost first, of two shards each."""
    names = ("outer", "replicate", "shard")[-len(sizes) :]
    return init_device_mesh("cpu", sizes, mesh_dim_names=names)


def sharded(model: nn.Sequential, mesh: DeviceMesh) -> nn.Sequential:
    for part in model:
        if any(True for _ in part.parameters()):
            fully_shard(part, mesh=mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"])


def pipeline_stage(part: nn.Module, index: int, group: dist.ProcessGroup) -> PipelineStage:
    """One of two stages.

    PyTorch 2.9 opens the connections of stages by sending an int64 to where a float32 is awaited,
    which ends the process over gloo. Without that gloo opens them all the same.
    """
    stage = PipelineStage(part, index, 2, torch.device("cpu"), group=group)
    stage._get_init_p2p_neighbors_ops = list
    return stage


def halves(worker: int, step: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1000 * worker + step)
    x = torch.randn(SHARDS, 6, 4, generator=generator, dtype=torch.float64)
    y = torch.randn(SHARDS, 6, 1, generator=generator, dtype=torch.float64)
    return list(zip(x, y, strict=True))


def loss_of(model: nn.Module, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    return torch.stack([(model(x) - y).square().mean() for x, y in parts]).mean()


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)


def train(
    optimizers: Sequence[LocalSGD],
    model: nn.Module,
    worker: int,
    steps: range,
    shard: int | None = None,
    before: Callable[[], Any] = lambda: None,
) -> None:
    """Args:
    shard: whose half is seen; both are, if not given.
    before: called before each step.
    """
    for step in steps:
        parts = halves(worker, step)
        model.zero_grad()
        loss_of(model, parts if shard is None else parts[shard : shard + 1]).backward()
        before()
        for optimizer in optimizers:
            optimizer.step()


def whole(model: nn.Module) -> Values:
    """All parameters, gathered from the ranks of the worker."""
    return {
        name: (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
        for name, p in model.named_parameters()
    }


def rank_of_worker() -> tuple[int, int]:
    """Worker and position of this rank."""
    return divmod(dist.get_rank(), SHARDS)


class OfShards(nn.Module):
    """A whole model whose parameters are the shards of `model`, each a tensor of its own."""

    def __init__(self, model: nn.Sequential) -> None:
        super().__init__()
        self.names = [name for name, _ in model.named_parameters()]
        self.shards = nn.ModuleList(nn.ParameterList() for _ in range(SHARDS))
        for _, parameter in model.named_parameters():
            rows = list(parameter.detach().chunk(SHARDS))
            rows += [parameter.detach()[:0]] * (SHARDS - len(rows))
            for part, shard in zip(self.shards, rows, strict=True):
                part.append(nn.Parameter(shard.clone()))
        self._model = [model]

    def whole(self) -> Values:
        return {
            name: torch.cat(parts) for name, *parts in zip(self.names, *self.shards, strict=True)
        }

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self._model[0], self.whole(), (x,))
