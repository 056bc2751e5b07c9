"""Whole runs in a few lines: a `Case`, the package's way to carry it out, and the obvious ways.

`carried_out` hosts the workers in P processes (1: here). `obvious` keeps K separate models, steps
them with K separate optimizers and averages blocks of them, parameter by parameter, where an
odometer says so. `minibatch` has one model and averages K gradients before each step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from localsgd.averaging.build import build_levels
from localsgd.averaging.outer import Outer
from localsgd.averaging.placement import placement_of, row_multiple
from localsgd.averaging.topology import Topology
from localsgd.loop import train
from localsgd.reduce import ExactMean, Reducer
from localsgd.schedule.fixed import every
from localsgd.schedule.progress import Schedule
from localsgd.schedule.rounds import Position
from localsgd.train.data.sampling.order import Order
from localsgd.train.engine.hosted import Inner, Workers
from localsgd.wire import Ledger
from tests.distributed.harness import run
from tests.odometer import odometer
from tests.problems import SAMPLES, loss_on, net, no_decay


def falling(step: int) -> float:
    """A learning rate that changes at every step and drops after 6."""
    return (0.3 if step < 6 else 0.05) / (1 + 0.1 * step)


@dataclass(frozen=True)
class Case:
    """A run.

    Args:
        schedules: of the levels, innermost first.
        average: `models`, or `gradients` where that is possible.
        reducer: made anew for each level.
        outers: one for each level; plain averaging where empty.
    """

    topology: str = "4"
    schedules: tuple[Schedule, ...] = (every(1),)
    steps: int = 13
    net: str = "plain"
    dtype: torch.dtype = torch.float64
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    batch: int = 3
    learning_rate: Callable[[int], float] = falling
    average: str = "models"
    reducer: Callable[[], Reducer] = ExactMean
    outers: tuple[Outer | None, ...] = ()
    elementwise: bool = True

    @property
    def workers(self) -> int:
        return Topology.parse(self.topology).workers

    @property
    def order(self) -> Order:
        return Order(SAMPLES, self.workers, self.batch, seed=7)

    def sgd(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0, momentum=self.momentum, nesterov=self.nesterov)


@dataclass
class Outcome:
    """What came out: tensors by name and worker, first dimension K; levels' bytes."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor] = field(default_factory=dict)
    momenta: dict[str, Tensor] = field(default_factory=dict)
    bytes: tuple[int, ...] = ()
    calls: tuple[int, ...] = ()


@dataclass
class Assembled:
    """A case on the bench: run it with `go`, stop it anywhere, look at it."""

    case: Case
    workers: Workers
    levels: list[Any]
    gradients: list[Any]
    ledger: Ledger
    position: Position

    @staticmethod
    def of(case: Case) -> Assembled:
        placement = placement_of(Topology.parse(case.topology))
        model = net(case.net, case.dtype)
        order = case.order

        def loss(model: nn.Module, worker: int, step: int) -> Tensor:
            return loss_on(model, order.indices(worker, step))

        inner = Inner(case.sgd, case.weight_decay, no_decay(model), case.elementwise)
        multiple = row_multiple(case.workers)
        workers = Workers(model, loss, inner, placement.workers, multiple)
        count = placement.topology.levels
        ledger = Ledger.of(count)
        build = partial(
            build_levels,
            placement,
            reducers=[case.reducer() for _ in range(count)],
            ledger=ledger,
        )
        levels = build(workers.params, outers=case.outers or None)
        gradients = build(workers.grads) if case.average == "gradients" else []
        return Assembled(case, workers, levels, gradients, ledger, Position.start(count))

    def go(self, steps: int | None = None, after_step: Callable[[], None] = lambda: None) -> None:
        train(
            self.workers,
            self.levels,
            self.case.schedules,
            self.case.learning_rate,
            steps=self.case.steps if steps is None else steps,
            position=self.position,
            gradients=self.gradients,
            after_step=after_step,
        )

    def outcome(self) -> Outcome:
        models = self.workers.models
        named = [dict(model.named_parameters()) for model in models]
        buffers = [dict(model.named_buffers()) for model in models]
        return Outcome(
            params=stacked(named),
            buffers=stacked(buffers),
            momenta={name: self._momentum(name) for name in named[0]},
            bytes=tuple(entry.bytes for entry in self.ledger.levels),
            calls=tuple(entry.calls for entry in self.ledger.levels),
        )

    def _momentum(self, name: str) -> Tensor:
        """Of one parameter `[w, ...]`; from a row stepped as two vectors, or tensor by tensor."""
        slot = next(slot for slot in self.workers.layout.slots if slot.name == name)
        found = []
        for optimizer in self.workers.optimizers:
            row = torch.zeros(self.workers.layout.length, dtype=self.case.dtype)
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    start = parameter.storage_offset() % self.workers.layout.length
                    buffer = optimizer.state[parameter].get("momentum_buffer")
                    if buffer is not None:
                        row[start : start + buffer.numel()] = buffer.flatten()
            found.append(slot.view(row).clone())
        return torch.stack(found)


def stacked(named: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Tensors by name from several dictionaries, as `[K, ...]`."""
    return {
        name: torch.stack([tensors[name].detach().clone() for tensors in named])
        for name in named[0]
    }


def carried_out_here(case: Case) -> Outcome:
    assembled = Assembled.of(case)
    assembled.go()
    return assembled.outcome()


def carried_out(case: Case, processes: int = 1) -> Outcome:
    """The case by the package, its workers spread over P processes."""
    if processes == 1:
        return carried_out_here(case)
    return joined(run(processes, carried_out_here, case))


def joined(parts: list[Outcome]) -> Outcome:
    """Outcomes of several processes as one, by worker."""

    def cat(which: str) -> dict[str, Tensor]:
        tensors = [getattr(part, which) for part in parts]
        return {name: torch.cat([part[name] for part in tensors]) for name in tensors[0]}

    first = parts[0]
    return Outcome(cat("params"), cat("buffers"), cat("momenta"), first.bytes, first.calls)


def decayed_groups(case: Case, model: nn.Module) -> list[dict[str, Any]]:
    spared = no_decay(model)
    named = list(model.named_parameters())
    return [
        {"params": [p for n, p in named if n not in spared], "weight_decay": case.weight_decay},
        {"params": [p for n, p in named if n in spared], "weight_decay": 0.0},
    ]


def step(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad()


def blocks_of(topology: Topology, depth: int) -> list[range]:
    """The workers that hold one model once the `depth` innermost levels have averaged."""
    if topology.unequal and depth == 1:
        starts = [sum(topology.unequal[:i]) for i in range(len(topology.unequal))]
        return [range(s, s + n) for s, n in zip(starts, topology.unequal, strict=True)]
    size = topology.workers if depth == topology.levels else 1
    if depth < topology.levels:
        for level in range(depth):
            size *= topology.sizes[level]
    return [range(start, start + size) for start in range(0, topology.workers, size)]


def obvious(case: Case) -> Outcome:
    """K models, K optimizers, averages of blocks of models: no rows, no levels, no anchors."""
    topology = Topology.parse(case.topology)
    models = [net(case.net, case.dtype) for _ in range(case.workers)]
    optimizers = [case.sgd(decayed_groups(case, model)) for model in models]
    order = case.order
    for done, depth in enumerate(odometer(case.schedules, case.steps)):
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            loss_on(model, order.indices(worker, done)).backward()
            step(optimizer, case.learning_rate(done))
        if done + 1 == case.steps:
            depth = topology.levels
        for block in blocks_of(topology, depth) if depth else []:
            average([models[worker] for worker in block])
    return Outcome(
        stacked([dict(model.named_parameters()) for model in models]),
        stacked([dict(model.named_buffers()) for model in models]),
        stacked([momenta(m, o) for m, o in zip(models, optimizers, strict=True)]),
    )


def average(models: list[nn.Module]) -> None:
    with torch.no_grad():
        for same in zip(*(model.parameters() for model in models), strict=True):
            mean = torch.stack(list(same)).mean(0)
            for parameter in same:
                parameter.copy_(mean)


def momenta(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        name: optimizer.state[p].get("momentum_buffer", torch.zeros_like(p))
        for name, p in model.named_parameters()
    }


def minibatch(case: Case) -> Outcome:
    """SGD on batches of K B, as one model: K chunks, each through batch norm on its own (ghost
    batch norm), their gradients averaged before the one step.
    """
    model = net(case.net, case.dtype)
    statistics = [copy.deepcopy(dict(model.named_buffers())) for _ in range(case.workers)]
    optimizer = case.sgd(decayed_groups(case, model))
    order = case.order
    for done in range(case.steps):
        for worker, buffers in enumerate(statistics):
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])
            (loss_on(model, order.indices(worker, done)) / case.workers).backward()
            for name, buffer in model.named_buffers():
                buffers[name].copy_(buffer)
        step(optimizer, case.learning_rate(done))
    parameters = dict(model.named_parameters())
    return Outcome(
        stacked([parameters] * case.workers),
        stacked(statistics),
        stacked([momenta(model, optimizer)] * case.workers),
    )


def close(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Equal to 1e-12, by name and worker."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(
            tensor, other[name], rtol=1e-12, atol=1e-12, msg=lambda text, n=name: f"{n}: {text}"
        )


def same_bits(one: Outcome, other: Outcome) -> None:
    for which in ("params", "buffers", "momenta"):
        left, right = getattr(one, which), getattr(other, which)
        assert left.keys() == right.keys()
        for name, tensor in left.items():
            assert torch.equal(tensor, right[name]), f"{which} of {name} differ"


def distance(one: Outcome, other: Outcome) -> float:
    """The largest difference between two parameters."""
    return max((one.params[name] - other.params[name]).abs().max().item() for name in one.params)
