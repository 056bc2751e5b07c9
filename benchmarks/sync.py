"""A dense sync against one flat all-reduce of the same scalars and the division.

On gloo over loopback, with the ways that people use instead: PyTorch's averager, and a loop over
parameters. A turn's time is that of the slowest process, which all have to wait for. All use one
process group: two groups that do the same differ by up to 14 % here, as their threads and sockets
come to lie. A second flat sum, on memory of its own, says what is left of such chance.
"""

from __future__ import annotations

from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from benchmarks import crew
from benchmarks.report import Finding, publish, timed
from benchmarks.timing import Action, Times, take_turns, turn_seconds
from benchmarks.workloads import (
    Holder,
    Shapes,
    layout_of,
    random_cifar,
    scalars,
    shapes_of,
    wide_resnet,
)
from localsgd import LocalSGD
from localsgd.averaging.build import build_levels
from localsgd.averaging.level import average_and_share
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.train.data import models
from localsgd.wire import Ledger

PROCESSES = (2, 4)
BOUND = 1.05
SECONDS = 40.0
REFERENCE, OURS = "flat all-reduce", ("Level", "LocalSGD")
AVERAGER, SLOW = "PeriodicModelAverager", "one by one"
CONTROL = "flat all-reduce again"


def cases() -> dict[str, Shapes]:
    return {
        "ResNet-20": shapes_of(models.build("resnet20", random_cifar(64), seed=0)),
        "WRN-28-10": wide_resnet(),
        "1,000 x 1,000": [(1000,)] * 1000,
    }


@torch.no_grad()
def contestants(shapes: Shapes) -> dict[str, Action]:
    """A sync of each, on memory of its own."""
    processes = dist.get_world_size()
    theirs = Holder(shapes)
    for parameter in theirs.parameters():  # PyTorch's averager passes over those without gradients
        parameter.grad = torch.zeros_like(parameter)

    def one_by_one() -> None:
        for parameter in theirs.parameters():
            dist.all_reduce(parameter.data)
            parameter.data.div_(processes)

    averager = PeriodicModelAverager(period=2)  # 1 would do and warns

    def averaged() -> None:
        averager.step = 0
        averager.average_parameters(theirs.parameters())

    with mock.patch.object(dist, "new_group", return_value=dist.group.WORLD):
        ours = {"Level": level(shapes), "LocalSGD": local_sgd(shapes)}
    return {
        REFERENCE: flat_sum(shapes),
        CONTROL: flat_sum(shapes),
        **ours,
        AVERAGER: averaged,
        SLOW: one_by_one,
    }


def flat_sum(shapes: Shapes) -> Action:
    """The least that a sync is: the sum of one vector, and the division."""
    flat, processes = torch.rand(scalars(shapes)), dist.get_world_size()

    def sum_and_divide() -> None:
        dist.all_reduce(flat)
        flat.div_(processes)

    return sum_and_divide


def level(shapes: Shapes) -> Action:
    """A level as in the trainer: one row for each process, metered."""
    processes = dist.get_world_size()
    rows = layout_of(shapes, processes).rows(1, "cpu").fill_(1.0)
    levels = build_levels(placement_of(Topology((processes,))), rows, ledger=Ledger.of(1))
    return lambda: average_and_share(levels)


def local_sgd(shapes: Shapes) -> Action:
    """All that a step does beyond the local one: parameters looked for, rounds moved along."""
    model = Holder(shapes)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    return sync_of(LocalSGD(inner, model, local_steps=1, average="models"))


def sync_of(optimizer: LocalSGD) -> Action:
    """What `step()` does when a sync is due."""

    def sync() -> None:
        optimizer._before_sync(1)
        optimizer._loop.sync(meanwhile=optimizer._loop.open)

    return sync


def timed_here(shapes: Shapes, seconds: float) -> list[dict[str, Times]]:
    """Times in each turn of the slowest process; called in all of them.

    Once for ours, once for the others, which would leave ours few turns.
    """
    actions = contestants(shapes)
    slow = {name: actions[name] for name in (REFERENCE, AVERAGER, SLOW)}
    del actions[SLOW], actions[AVERAGER]
    return [turns(actions, 0.8 * seconds, least=10), turns(slow, 0.2 * seconds, least=4)]


def turns(actions: dict[str, Action], seconds: float, least: int) -> dict[str, Times]:
    """Times of the slowest process in each turn."""
    count = torch.tensor([seconds / turn_seconds(actions)])
    dist.all_reduce(count, op=dist.ReduceOp.MIN)
    times = take_turns(actions, max(least, int(count)), before=dist.barrier)
    return {name: Times(slowest(own.wall), slowest(own.cpu)) for name, own in times.items()}


def slowest(seconds: list[float]) -> list[float]:
    most = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return most.tolist()


def measure(seconds: float = SECONDS) -> list[Finding]:
    """Findings of all cases, in about so many seconds each."""
    findings = []
    for processes in PROCESSES:
        for name, shapes in cases().items():
            quick, slow = crew.run(processes, timed_here, shapes, seconds)
            bounds = dict.fromkeys(OURS, BOUND)
            case = f"{processes} processes, {name}"
            findings += timed(case, quick, REFERENCE, bounds)
            findings += timed(case, slow, REFERENCE, bounds)[1:]
    return findings


def main(share: float = 1.0) -> bool:
    torch.set_num_threads(1)
    return publish("sync", "A dense sync", measure(share * SECONDS))


if __name__ == "__main__":
    main()
