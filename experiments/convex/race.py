"""Several step sizes against each other until the best is known.

All columns of a race take the same rounds, so the first to reach a target needs the fewest; all
others of its family are then known to be worse without being run to their end. That is exact, not a
heuristic: a run that has not reached the target in r rounds needs more than r. Runs that reach it
in the same round are told apart by f there (lower is better), and equal runs by the smaller c:
min(32, c n / (t + 1)) is 32 throughout for every large c.

A target is reached at the first round whose averaged model, or the average of the averaged models
so far with weights proportional to the round, has f at most the target. Every round counts
(`objective.py` says how that is afforded).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from experiments.convex.objective import Objective
from experiments.convex.simulation import Simulation
from experiments.convex.stepsizes import Family, StepSize

PATIENCE = 3
"""Factor by which the worse family is run longer than the better one."""

Clock = Callable[[Simulation], float]


@dataclass(frozen=True)
class Reached:
    """How a run reached a target.

    Args:
        clock: rounds, or whatever the race was timed in.
        value: f then, of the better of the last model and the average.
        by_average: whether that was the average.
        steps: local steps of each worker.
        syncs: by level, innermost first.
    """

    clock: float
    value: float
    by_average: bool
    steps: int
    syncs: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """The results of one step size in a race, for each target, the easiest first.

    Args:
        reached: how it came there; `None` if another was before it.
        until: the clock up to which it is known not to have come, where `reached` is `None`.
    """

    size: StepSize
    reached: tuple[Reached | None, ...]
    until: tuple[float, ...]


@dataclass
class _Field:
    """The columns of one family. They look for the same target at any time."""

    targets: Sequence[float]
    caps: list[float]
    notes: dict[StepSize, list[tuple[Reached | None, float]]]
    target: int = 0

    @property
    def through(self) -> bool:
        return self.target == len(self.targets)

    @property
    def aim(self) -> float:
        return self.targets[self.target]

    def hear(self, now: float, reached: Mapping[StepSize, Reached]) -> bool:
        """Takes note of a round; whether it brought the last target."""
        won = False
        while not self.through:
            cap = self.caps[self.target]
            there = {s: r for s, r in reached.items() if r.value <= self.aim and now <= cap}
            if not there and now < cap:
                return False
            for size, note in self.notes.items():
                note.append((there.get(size), min(now, cap)))
            self.target += 1
            won = bool(there)
        return won

    def lose_patience(self, clock: float) -> None:
        """Another family is through: this one gets `PATIENCE` times as long."""
        self.caps = [min(cap, PATIENCE * clock) for cap in self.caps]

    def runs(self) -> list[Run]:
        return [Run(size, *_columns(note)) for size, note in self.notes.items()]


def _columns(
    note: Sequence[tuple[Reached | None, float]],
) -> tuple[tuple[Reached | None, ...], tuple[float, ...]]:
    return tuple(reached for reached, _ in note), tuple(until for _, until in note)


def in_rounds(simulation: Simulation) -> float:
    """The clock of runs whose rounds are all alike."""
    return simulation.rounds


def race(
    simulation: Simulation,
    objective: Objective,
    targets: Sequence[float],
    caps: Mapping[Family, Sequence[float]],
    clock: Clock = in_rounds,
) -> list[Run]:
    """Runs all columns of `simulation` until every target is decided in every family.

    Args:
        simulation: at its start; used up.
        objective: f.
        targets: descending.
        caps: by family, for each target, the clock beyond which a run is of no interest: that of
            the best run known so far. Infinity if none is known.
        clock: what is to be least.
    """
    fields: dict[Family, _Field] = {}
    for size in simulation.sizes:
        new = _Field(targets, list(caps[size.family]), {})
        fields.setdefault(size.family, new).notes[size] = []
    while simulation.sizes:
        simulation.next_round()
        now = clock(simulation)
        reached = _reached(simulation, objective, fields, now)
        for family in {size.family for size in simulation.sizes}:
            if fields[family].hear(now, reached.get(family, {})):
                for other in fields.values():
                    other.lose_patience(now)
        going = [not fields[size.family].through for size in simulation.sizes]
        if not all(going):
            simulation.keep(np.flatnonzero(going))
    return [run for one in fields.values() for run in one.runs()]


def _reached(
    simulation: Simulation,
    objective: Objective,
    fields: Mapping[Family, _Field],
    now: float,
) -> dict[Family, dict[StepSize, Reached]]:
    """The columns that have reached their family's target, by family."""
    aims = np.array([fields[size.family].aim for size in simulation.sizes])
    points = np.concatenate([simulation.models, simulation.averages], axis=1)
    last, average = objective.values_at_most(np.tile(aims, 2), points).reshape(2, -1)
    reached: dict[Family, dict[StepSize, Reached]] = {}
    for column in np.flatnonzero(np.isfinite(np.minimum(last, average))):
        size = simulation.sizes[column]
        reached.setdefault(size.family, {})[size] = Reached(
            clock=now,
            value=float(min(last[column], average[column])),
            by_average=bool(average[column] < last[column]),
            steps=simulation.steps,
            syncs=tuple(simulation.syncs),
        )
    return reached
