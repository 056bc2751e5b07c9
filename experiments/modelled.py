"""Speed-ups on a clock that is fitted to the paper's minutes, from what was counted."""

from __future__ import annotations

from experiments import clock
from experiments.arms import Arm, found
from experiments.claims import OPEN
from experiments.study import Claim, Records


def speedups(records: Records, one: Arm, base: Arm, workers: int) -> list[float]:
    """How many times as fast a step of `one` is, syncs included, by seed."""
    mine, theirs = found(records, one), found(records, base)
    return [
        clock.per_step(theirs[seed], workers) / clock.per_step(mine[seed], workers)
        for seed in mine
        if seed in theirs
    ]


def faster(records: Records, sentence: str, place: str, one: Arm, base: Arm, workers: int) -> Claim:
    """The claim that `one` is faster than `base`, which only a cluster can show.

    A clock fitted to the paper's own minutes replaces it; its result is reported, but is no
    evidence.
    """
    said = f"it takes {workers} GPUs; a clock fitted to the paper's minutes can't confirm it"
    if ratios := speedups(records, one, base, workers):
        said += f" (it says {sum(ratios) / len(ratios):.2f})"
    jobs = (*one.jobs, *base.jobs)
    return Claim(sentence, place, OPEN, said, jobs, reservation=said, family="time")
