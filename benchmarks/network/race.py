"""Contestants take turns on a laboratory; the slowest process of each act is what counts.

Shapes: K workers, one a process · B samples of a local batch.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist

from benchmarks.network.crew import Crew
from benchmarks.network.laboratory import Laboratory

WARM_STEPS = 2
SECONDS = 300.0
"""Time limit of an act."""

LOOK_SECONDS = 0.03
QUIET_BYTES = 10_000
"""Fewest bytes that a link in use carries in that time at the lowest rate."""

# In the processes of the crew.


@dataclass
class _Entrant:
    step: Callable[[], None]
    steps: int
    optimizer: object

    @property
    def waited_seconds(self) -> float:
        """The seconds of waiting that a ledger has measured; 0 without a ledger."""
        ledger = getattr(self.optimizer, "ledger", None)
        return 0.0 if ledger is None else ledger.seconds


_entrants: dict[str, _Entrant] = {}


def _enter(name: str, network: str, batch: int) -> None:
    from benchmarks.network.contestants import CONTESTANTS
    from benchmarks.workloads import inner, loop, random_cifar
    from localsgd.train.data import models

    contestant = CONTESTANTS[name]
    task = random_cifar(seed=dist.get_rank())
    model = models.build(network, task, seed=0)
    model, optimizer = contestant.wrap(model, inner(model))
    step = loop(task, model, optimizer, batch)
    for _ in range(WARM_STEPS + contestant.ahead):
        step()
    _entrants[name] = _Entrant(step, contestant.steps, optimizer)


def _act(name: str) -> tuple[float, float]:
    """Seconds that the act took in this process, and of them those that a ledger has as waited."""
    entrant = _entrants[name]
    dist.barrier()
    start, waited = time.perf_counter(), entrant.waited_seconds
    for _ in range(entrant.steps):
        entrant.step()
    return time.perf_counter() - start, entrant.waited_seconds - waited


# In the process that measures.


@dataclass
class Laps:
    """What the acts of one contestant took, act by act, for a step.

    Args:
        seconds: of the slowest process.
        waited: in collectives, mean over processes, as a ledger has it; 0 without one.
        node_bytes: sent by the node that sent most.
        rack_bytes: through the up-link, both ways, of the rack where that is most; 0 with one rack.
    """

    seconds: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    node_bytes: list[float] = field(default_factory=list)
    rack_bytes: list[float] = field(default_factory=list)


class Race:
    """Contestants on one crew, with their models and memories, which live through all turns."""

    def __init__(self, laboratory: Laboratory, crew: Crew, network: str, batch: int) -> None:
        self._laboratory = laboratory
        self._crew = crew
        self._network = network
        self._batch = batch
        self._steps: dict[str, int] = {}

    def enter(self, name: str, steps: int) -> None:
        """Builds a contestant and lets it take its first steps, off the clock."""
        self._crew.call(_enter, name, self._network, self._batch, seconds=SECONDS)
        self._steps[name] = steps

    def take_turns(self, names: Sequence[str], turns: int) -> dict[str, Laps]:
        """The laps of all: in every turn each acts once, in an order drawn anew."""
        laps = {name: Laps() for name in names}
        for turn in range(turns):
            for name in random.Random(turn).sample(list(names), len(names)):
                self._lap(name, laps[name])
        return laps

    def _lap(self, name: str, laps: Laps) -> None:
        before = self._laboratory.counters()
        found = self._crew.call(_act, name, seconds=SECONDS)
        late = self._until_quiet()
        crossed = self._laboratory.counters() - before
        steps = self._steps[name]
        seconds, waited = zip(*found, strict=True)
        laps.seconds.append((max(seconds) + late) / steps)
        laps.waited.append(sum(waited) / len(waited) / steps)
        laps.node_bytes.append(max(node.sent for node in crossed.nodes) / steps)
        through = [rack.sent + rack.received for rack in crossed.racks]
        laps.rack_bytes.append(max(through, default=0) / steps)

    def _until_quiet(self) -> float:
        """Seconds for which something crosses the links still: syncs that have not arrived.

        They are the act's, so that nothing is gained by what disturbs the next contestant.
        """
        start, last, until = time.perf_counter(), self._laboratory.counters(), 0.0
        while True:
            time.sleep(LOOK_SECONDS)
            now = self._laboratory.counters()
            if max(node.sent for node in (now - last).nodes) < QUIET_BYTES:
                return until
            last, until = now, time.perf_counter() - start
