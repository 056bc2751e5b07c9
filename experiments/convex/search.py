"""The search for the best step size, as the paper has it.

"For each stepsize we determine the best parameter c by a grid search, and consider parameter c
optimal, if parameters {c/4, c/2, 2c, 4c} yield worse results (i.e. more iterations to reach the
target accuracy)", c = 2^i over all whole i.

A search starts from a window of exponents and widens it until the best of each family, for each
target, has two neighbours on either side that were run and are worse. How ties are broken is said
in `race.py`. Constant step sizes that are too large never come to a target: where no step size of a
family has come there in three times the time of the other family, the window is widened downwards,
to 2^-14 at most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.convex.race import PATIENCE, Reached, Run
from experiments.convex.stepsizes import FAMILIES, Family, StepSize

_NEIGHBOURS = 2
_LOWEST = -14

Runner = Callable[[Sequence[StepSize], Mapping[Family, Sequence[float]]], Iterable[Run]]


@dataclass(frozen=True)
class Best:
    """The best step size for one target.

    Args:
        size: of both families.
        reached: what it needed.
        by_family: what the best of each family needed; without a family that needs more than three
            times as long.
    """

    size: StepSize
    reached: Reached
    by_family: Mapping[Family, tuple[StepSize, Reached]]


@dataclass(frozen=True)
class Found:
    """What a search found, for each target, and how many step sizes it ran for that."""

    best: tuple[Best, ...]
    runs: int


def first_window(joint_batch: int) -> dict[Family, range]:
    """Exponents to start from, given K B: the noise of small batches asks for small steps."""
    highest = min(3, max(-1, joint_batch.bit_length() - 6))
    return {"constant": range(highest - 6, highest + 1), "decaying": range(-5, 1)}


def search(
    run: Runner, known: Iterable[Run], targets: int, window: Mapping[Family, range]
) -> Found:
    """The best step size for each target.

    Args:
        run: runs step sizes, or the first of them, until decided or their family's caps are over.
        known: runs from before, of the same configuration.
        targets: how many there are.
        window: exponents to start from, for each family that takes part.
    """
    runs = {one.size: one for one in known}
    while missing := _missing(runs, targets, window):
        caps = {family: _caps(runs, family, targets) for family in window}
        for one in run(missing, caps):
            runs[one.size] = one
    return Found(tuple(_best(runs, target) for target in range(targets)), len(runs))


def _missing(
    runs: Mapping[StepSize, Run], targets: int, window: Mapping[Family, range]
) -> list[StepSize]:
    """What has to be run next: the window, then whatever the best runs lack as neighbours."""
    wanted = {StepSize(family, i) for family, exponents in window.items() for i in exponents}
    if wanted <= runs.keys():
        for family in window:
            for target in range(targets):
                wanted |= _around_leader(runs, family, target)
    return sorted(wanted - runs.keys())


def _around_leader(runs: Mapping[StepSize, Run], family: Family, target: int) -> set[StepSize]:
    leader = _leader(runs, family, target)
    if leader is not None:
        near = range(-_NEIGHBOURS, _NEIGHBOURS + 1)
        return {StepSize(family, leader[0].exponent + offset) for offset in near}
    lowest = min(size.exponent for size in runs if size.family == family)
    # All of them at once: a race takes as long as its longest run, whatever its columns.
    return {StepSize(family, i) for i in range(_LOWEST, lowest)}


def _leader(
    runs: Mapping[StepSize, Run], family: Family, target: int
) -> tuple[StepSize, Reached] | None:
    """The run of a family that comes to a target first; `None` if none does."""
    there = [
        (size, reached)
        for size, run in runs.items()
        if size.family == family and (reached := run.reached[target]) is not None
    ]
    if not there:
        return None
    return min(there, key=lambda one: (one[1].clock, one[1].value, one[0].exponent))


def _caps(runs: Mapping[StepSize, Run], family: Family, targets: int) -> list[float]:
    return [_cap(runs, family, target) for target in range(targets)]


def _cap(runs: Mapping[StepSize, Run], family: Family, target: int) -> float:
    """The clock of the family's leader, or three times the other's; infinity before both."""
    own = _leader(runs, family, target)
    if own is not None:
        return own[1].clock
    others = (_leader(runs, other, target) for other in FAMILIES if other != family)
    return min((PATIENCE * one[1].clock for one in others if one is not None), default=math.inf)


def _best(runs: Mapping[StepSize, Run], target: int) -> Best:
    leaders = {family: _leader(runs, family, target) for family in FAMILIES}
    there = {family: leader for family, leader in leaders.items() if leader is not None}
    size, reached = min(there.values(), key=lambda one: (one[1].clock, one[1].value))
    return Best(size, reached, there)
