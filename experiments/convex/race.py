"""Several step sizes against each other until the best is known.

All columns of a race take the same rounds, so the first to reach a target needs the fewest; all
others of its family are then known to be worse without being run to their end. That is exact, not a
heuristic: a run that has not reached the target in r rounds needs more than r. Runs that reach it
in the same round are told apart by f there (lower is better), and equal runs by the smaller c:
min(32, c n / (t + 1)) is 32 throughout for every large c.

A target is reached at the first round whose agreed model, or the average of the agreed models so
far with weights proportional to the round, has f at most the target. Every round counts
(`objective.py` says how that is afforded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from experiments.convex.objective import Objective
from experiments.convex.simulation import Simulation
from experiments.convex.stepsizes import Family, StepSize
from localsgd.tasks.logistic.rows import Floats

PATIENCE = 3
"""How many times longer than the better family the other is followed."""

Clock = Callable[[Simulation], float]


@dataclass(frozen=True)
class Reached:
    """How a run came to a target.

    Args:
        clock: rounds, or whatever the race was timed in.
        value: f then, of the better of the last model and the average.
        by_average: whether that was the average.
        steps: local steps of each worker.
        agreements: by level, innermost first.
    """

    clock: float
    value: float
    by_average: bool
    steps: int
    agreements: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """What a race tells of one step size, for each target, the easiest first.

    Args:
        reached: how it came there; `None` where another was before it.
        until: the clock up to which it is known not to have come, where `reached` is `None`.
    """

    size: StepSize
    reached: tuple[Reached | None, ...]
    until: tuple[float, ...]


@dataclass
class _Field:
    """The columns of one family: they look for the same target at any time."""

    caps: list[float]
    target: int = 0


@dataclass
class _Notes:
    reached: list[Reached | None] = field(default_factory=list)
    until: list[float] = field(default_factory=list)


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
            the best run known so far. Infinity where none is known.
        clock: what is to be least.
    """
    fields = {size.family: _Field(list(caps[size.family])) for size in simulation.sizes}
    notes = {size: _Notes() for size in simulation.sizes}
    while simulation.sizes:
        simulation.next_round()
        now = clock(simulation)
        values, by_average = _values(simulation, objective, targets, fields)
        for family, columns in _by_family(simulation.sizes).items():
            place = fields[family]
            while place.target < len(targets):
                cap = place.caps[place.target]
                there = [c for c in columns if values[c] <= targets[place.target] and now <= cap]
                if not there and now < cap:
                    break
                for column in columns:
                    note = notes[simulation.sizes[column]]
                    note.reached.append(
                        _reached(simulation, now, values[column], by_average[column])
                        if column in there
                        else None
                    )
                    note.until.append(min(now, cap))
                place.target += 1
            if place.target == len(targets) and there:
                _lose_patience(fields.values(), now)
        going = [
            c for c, s in enumerate(simulation.sizes) if fields[s.family].target < len(targets)
        ]
        if len(going) < len(simulation.sizes):
            simulation.keep(np.array(going, dtype=np.int64))
    return [Run(size, tuple(note.reached), tuple(note.until)) for size, note in notes.items()]


def _lose_patience(fields: Iterable[_Field], clock: float) -> None:
    """Once one family is through, the others get `PATIENCE` times as long."""
    for place in fields:
        for target in range(place.target, len(place.caps)):
            place.caps[target] = min(place.caps[target], PATIENCE * clock)


def _values(
    simulation: Simulation,
    objective: Objective,
    targets: Sequence[float],
    fields: Mapping[Family, _Field],
) -> tuple[Floats, list[bool]]:
    """f by column, of the better of model and average; infinity above what it looks for.

    And whether that was the average.
    """
    aims = np.array([targets[fields[size.family].target] for size in simulation.sizes])
    points = np.concatenate([simulation.models, simulation.averages], axis=1)
    last, average = objective.values_at_most(np.tile(aims, 2), points).reshape(2, -1)
    return np.minimum(last, average), [bool(flag) for flag in average < last]


def _reached(simulation: Simulation, clock: float, value: float, by_average: bool) -> Reached:
    return Reached(clock, float(value), by_average, simulation.steps, tuple(simulation.agreements))


def _by_family(sizes: Sequence[StepSize]) -> dict[Family, list[int]]:
    columns: dict[Family, list[int]] = {}
    for column, size in enumerate(sizes):
        columns.setdefault(size.family, []).append(column)
    return columns
