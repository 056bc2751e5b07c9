"""Peak memory in the plain case: rows, gradients and inner state, and no further copy of the model.

Each case trains 36.4 million scalars with Nesterov momentum and weight decay in a process of its
own, and reads how far the resident memory rose above what it was with everything imported and a
small model trained. Batches are of one sample, so that activations are next to nothing. Then the
tensors are counted that a sync makes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks import crew, sync
from benchmarks.report import Finding, publish
from benchmarks.workloads import Shapes, deep_mlp, inner, scalars, shapes_of, wide_resnet
from localsgd import LocalSGD
from localsgd.averaging.build import build_levels
from localsgd.averaging.level import average_and_share
from localsgd.averaging.placement import placement_of, row_multiple
from localsgd.averaging.topology import Topology
from localsgd.loop import train
from localsgd.schedule.fixed import every
from localsgd.schedule.rounds import Position
from localsgd.train.config.choices import OPTIMIZERS
from localsgd.train.config.run import Run
from localsgd.train.engine.hosted import Inner, Workers

COPIES = 3
"""Necessary copies of a model: parameters, gradients, momentum."""
BOUND = COPIES + 0.1
"""Allowed copies: a tenth for gradients being sent and activations; another copy would add 1."""
STEPS = 4
STATUS = Path("/proc/self/status")


def loss_of(model: nn.Module) -> torch.Tensor:
    width = next(model.parameters()).shape[1]
    own = dist.get_rank() if dist.is_initialized() else 0
    return (model(torch.ones(1, width)) - own).square().mean()


def bare(make: Callable[[], nn.Module]) -> object:
    """A plain training loop."""
    model = make()
    return _own_loop(model, inner(model))


def through_local_sgd(make: Callable[[], nn.Module]) -> object:
    """The same loop with a sync."""
    model = make()
    return _own_loop(model, LocalSGD(inner(model), model, local_steps=2))


def _own_loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> object:
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    return optimizer


def through_trainer(make: Callable[[], nn.Module], hosted: int = 1) -> object:
    """The trainer with `hosted` workers per process, with a sync."""
    processes = dist.get_world_size() if dist.is_initialized() else 1
    placement = placement_of(Topology((processes * hosted,)))
    workers = Workers(
        make(),
        lambda model, worker, step: loss_of(model),
        Inner(OPTIMIZERS["sgd"](Run(momentum=0.9)), weight_decay=1e-4),
        placement.workers,
        row_multiple(processes * hosted),
    )
    levels = build_levels(placement, workers.params)
    train(workers, levels, [every(2)], lambda step: 0.05, steps=STEPS, position=Position.start(1))
    return workers


def through_trainer_4(make: Callable[[], nn.Module]) -> object:
    return through_trainer(make, hosted=4)


def peak_here(way: Callable[[Callable[[], nn.Module]], object]) -> float:
    """Bytes by which the peak of `way` on the large model rises above the memory before it."""
    torch.manual_seed(0)
    way(lambda: deep_mlp(2, 32))
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    before = _status("VmRSS")
    kept = way(deep_mlp)
    peak = _status("VmHWM")
    del kept
    return peak - before


def _status(name: str) -> float:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return float(line.split()[1]) * 1024
    raise RuntimeError(f"{STATUS} has no {name}")


class Allocations(TorchDispatchMode):
    """Counts the bytes of tensors that operations make: outputs on memory of no input."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(made):
            if _memory(tensor) not in given:
                self.bytes += tensor.untyped_storage().nbytes()
        return made


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def made_by_syncs(shapes: Shapes) -> dict[str, int]:
    """Bytes of tensors that one sync of each makes, in one process of several."""
    made = {}
    for name, action in sync.contestants(shapes).items():
        action()
        with torch.no_grad(), Allocations() as allocations:
            action()
        made[name] = allocations.bytes
    return made


def made_in_process(shapes: Shapes, workers: int) -> int:
    """Bytes of tensors that a sync of `workers` rows makes in this process."""
    n = -(-scalars(shapes) // row_multiple(workers)) * row_multiple(workers)
    levels = build_levels(placement_of(Topology((workers,))), torch.rand(workers, n))
    with torch.no_grad(), Allocations() as allocations:
        average_and_share(levels)
    return allocations.bytes


WAYS: tuple[tuple[str, int, int, Callable[..., object]], ...] = (
    ("bare loop", 1, 1, bare),
    ("LocalSGD, 1 process", 1, 1, through_local_sgd),
    ("LocalSGD, 2 processes", 2, 1, through_local_sgd),
    ("trainer, 1 worker", 1, 1, through_trainer),
    ("trainer, 4 workers", 1, 4, through_trainer_4),
    ("trainer, 2 processes of 1", 2, 1, through_trainer),
)


def peaks() -> list[Finding]:
    size = 4 * scalars(shapes_of(deep_mlp()))
    findings = []
    for name, processes, hosted, way in WAYS:
        peak = crew.run(processes, peak_here, way, environment=crew.RETURNING)
        models = peak / size / hosted
        cells = {"MiB": f"{peak / 2**20:,.0f}", "models": f"[bold]{models:.2f}[/]"}
        figures = {"bytes": peak, "models": round(models, 4)}
        bound = None if way is bare else BOUND
        findings.append(Finding("peak, per worker", name, cells, figures, models, bound))
    return findings


def allocations() -> list[Finding]:
    shapes = wide_resnet()
    size = 4 * scalars(shapes)
    made = crew.run(2, made_by_syncs, shapes)
    made["4 rows in one process"] = made_in_process(shapes, 4)
    findings = []
    for name, count in made.items():
        cells = {"MiB": f"{count / 2**20:,.1f}", "models": f"[bold]{count / size:.3f}[/]"}
        figures = {"bytes": count, "models": round(count / size, 5)}
        ours = name in ("Level", "LocalSGD", "4 rows in one process")
        bound = 0.0 if ours else None
        findings.append(
            Finding("tensors made by a sync", name, cells, figures, float(count), bound)
        )
    return findings


def main(share: float = 1.0) -> bool:
    del share  # nothing here takes longer for being measured better
    torch.set_num_threads(1)
    return publish("memory", "Memory, in models of 36.4 M scalars", peaks() + allocations())


if __name__ == "__main__":
    main()
