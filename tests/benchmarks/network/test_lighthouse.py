"""torchft's methods on the laboratory do what their names say, over its links, and a failed
sync is noticed.

4 replicas; that of rank r has a gradient of r + 1 everywhere, so that H = 16 plain steps of 1 take
it from 0 to -16 (r + 1), and the mean to -40.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from benchmarks.network import lighthouse
from benchmarks.network.crew import Crew
from benchmarks.network.laboratory import Laboratory
from benchmarks.network.payload import sent

pytestmark = pytest.mark.timeout(60)

SCALARS, STEPS, MEAN = 1 << 18, 16, -40.0
OVERHEAD = 1.10
FIRST_OUTER_STEP = 0.7 * (1 + 0.9)
"""Of Nesterov's momentum from rest."""

_entered: list = []


def enter(name: str) -> None:
    """In a process of the crew: a replica that takes its steps by that method."""
    model = nn.Linear(SCALARS, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    _entered[:] = getattr(lighthouse, name)(model, inner)


def steps(count: int) -> tuple[float, float]:
    """The least and the greatest weight after so many further steps."""
    model, optimizer = _entered
    for _ in range(count):
        optimizer.zero_grad()
        (model.weight.sum() * (dist.get_rank() + 1)).backward()
        optimizer.step()
    return model.weight.min().item(), model.weight.max().item()


def leave() -> None:
    _, optimizer = _entered
    optimizer.manager.shutdown()
    _entered.clear()


@pytest.fixture
def entered(request: pytest.FixtureRequest, crew: Crew) -> Iterator[float]:
    """Replicas of one method; where its first sync has to lead."""
    name, averaged = request.param
    crew.call(enter, name)
    yield averaged
    crew.call(leave)


@pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="needs torchft")
@pytest.mark.parametrize(
    "entered",
    [("local_sgd", MEAN), ("diloco", FIRST_OUTER_STEP * MEAN)],
    ids=["local_sgd", "diloco"],
    indirect=True,
)
def test_replicas_average_over_the_links_after_16_steps_and_not_before(
    entered: float, crew: Crew, racks: Laboratory
) -> None:
    alone = crew.call(steps, STEPS - 1)
    assert alone == [(-(STEPS - 1.0) * (rank + 1),) * 2 for rank in range(4)]
    before = racks.counters()
    for weights in crew.call(steps, 1):
        assert weights == pytest.approx((entered, entered), rel=1e-12)
    ring = sent("dense", 8 * SCALARS, members=4)
    for node in (racks.counters() - before).nodes:
        assert ring <= node.sent < OVERHEAD * ring


class Broken:
    """A manager whose syncs all fail."""

    @staticmethod
    def current_step() -> int:
        return 0

    @staticmethod
    def errored() -> str:
        return "a link is down"


def test_a_dropped_sync_is_an_error() -> None:
    inner = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    replica = lighthouse.Replica(inner, Broken(), local_steps=2)
    replica.step()
    with pytest.raises(RuntimeError, match="0 of 1 syncs; a link is down"):
        replica.step()
