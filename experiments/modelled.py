"""Claims about time that follow from a clock's constants and from what was counted.

No measurement enters that chance could have moved: such a claim has a figure and no interval.
"""

from __future__ import annotations

from experiments import clock
from experiments.arms import Arm, found
from experiments.study import Claim, Records, State


def speedups(records: Records, one: Arm, base: Arm, workers: int) -> list[float]:
    """How many times as fast a step of `one` is, agreements included, by seed."""
    mine, theirs = found(records, one), found(records, base)
    return [
        clock.per_step(theirs[seed], workers) / clock.per_step(mine[seed], workers)
        for seed in mine
        if seed in theirs
    ]


def faster(
    records: Records, sentence: str, place: str, one: Arm, base: Arm, workers: int, factor: float
) -> Claim:
    """That `one` is at least `factor` times as fast as `base`, which agrees after every step.

    Without any agreement it would be 1 + price times as fast; where that is below `factor`, the
    clock has no answer, as it would be the same whatever was run.
    """
    jobs, most = (*one.jobs, *base.jobs), 1 + clock.price(workers)
    done = sum(records.of(job) is not None for job in jobs)
    state: State = "not decidable at this scale"
    if done < len(jobs):
        return Claim(sentence, place, state, f"{done} of {len(jobs)} runs are done", jobs)
    ratio = min(speedups(records, one, base, workers))
    evidence, reservation = f"modelled: {ratio:.2f}", ""
    if most < factor:
        reservation = f"no H is more than {most:.2f} times as fast on this clock, K = {workers}"
        evidence = f"{evidence}; {reservation}"
    elif records.scale.name != "smoke":
        state = "reproduced" if ratio >= factor else "not reproduced"
    return Claim(sentence, place, state, evidence, jobs, reservation)
