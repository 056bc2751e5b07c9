"""Hierarchical local SGD with a delay of some seconds at every sync of all workers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from experiments.arms import Arm, arm, claim, found, jobs_of, rounds, seeds_done, spread
from experiments.claims import OPEN
from experiments.clock import STEPS, fitted
from experiments.pictures import learning_curves
from experiments.study import (
    Cell,
    Claim,
    Page,
    Picture,
    Record,
    Records,
    Scale,
    State,
    Study,
    Table,
)
from localsgd.basics.units import duration

LABEL = "fig:cifar10_hlocalsgd_communication_efficiency"
TOPOLOGY = "2x2"
LOCAL_STEPS = 2
BLOCK_STEPS = (1, 2, 4, 8, 16, 32)
DELAYS = (0, 1, 50)
"""Delays in seconds."""
PLACE = "appendix D.3.1"
MARGIN = 0.5
HALF = 0.5
"""Fraction of a run's time above which its cause is the bottleneck."""


def arms(scale: Scale) -> dict[int, Arm]:
    """The arms by H^b."""
    return {
        hb: arm(
            scale,
            f"H^b = {hb}",
            light=True,
            method="hierarchical",
            workers=None,
            topology=TOPOLOGY,
            local_steps=(LOCAL_STEPS, hb),
        )
        for hb in BLOCK_STEPS
    }


def of_step() -> float:
    """Seconds of a local step."""
    return 60 * fitted().compute / STEPS


def of_sync() -> float:
    """Seconds of a sync of all, not delayed: that of 16 workers by log2 K / log2 16."""
    return 60 * fitted().syncing / STEPS * np.log2(4) / np.log2(16)


def seconds(record: Record, delay: float) -> float:
    """Seconds of the whole run; syncs within a node cost nothing."""
    late = record["syncs"][-1] * (of_sync() + delay)
    return record["steps"] * of_step() + late


def waiting(record: Record, delay: float) -> float:
    """The fraction of the run's time that is spent on syncs of all workers."""
    return 1 - record["steps"] * of_step() / seconds(record, delay)


def page(records: Records) -> Page:
    by = arms(records.scale)
    rows = [_row(records, hb, one) for hb, one in by.items()]
    headings = (
        "H^b",
        "test acc. (%)",
        "rounds within + of all",
        *(f"time, {delay} s late (modelled)" for delay in DELAYS),
        "waiting at 50 s",
        "seeds",
    )
    title = f"Two nodes of two workers, H = {LOCAL_STEPS}"
    return Page(
        tables=[Table(title, headings, rows, [one.jobs for one in by.values()])],
        pictures=[_picture(records, by, delay) for delay in DELAYS],
        claims=[*_accurate(records, by), _hidden(records, by[16])],
        notes=(_clock(), PLOTS),
    )


def _row(records: Records, block_steps: int, one: Arm) -> list[Cell]:
    done = next(iter(found(records, one).values()), None)
    times: list[Cell] = [None] * (len(DELAYS) + 1)
    if done is not None:
        share = f"{100 * waiting(done, DELAYS[-1]):.0f} %"
        times = [*(duration(seconds(done, delay)) for delay in DELAYS), share]
    accuracy = spread(records, one, "test_accuracy")
    return [block_steps, accuracy, rounds(records, one), *times, seeds_done(records, one)]


def _picture(records: Records, by: dict[int, Arm], delay: int) -> Picture:
    return learning_curves(
        f"late-{delay}",
        f"Training loss and test accuracy by modelled time, syncs of all {delay} s late",
        records,
        [*by.values()],
        against=_times(records, delay),
        x_label="seconds (modelled)",
    )


def _times(records: Records, delay: int) -> Callable[[Arm, np.ndarray], np.ndarray]:
    def against(one: Arm, epochs: np.ndarray) -> np.ndarray:
        record = next(iter(found(records, one).values()))
        return epochs * seconds(record, delay) / record["curve"][-1][0]

    return against


def _accurate(records: Records, by: dict[int, Arm]) -> list[Claim]:
    return [
        claim(
            records,
            f"Hierarchical local SGD with H = 2, H^b = {hb} is as accurate as with H^b = 1, within "
            f"{MARGIN:g} points.",
            PLACE,
            by[hb],
            by[1],
            margin=MARGIN,
            family="hierarchical",
        )
        for hb in (16, 32)
    ]


def _hidden(records: Records, one: Arm) -> Claim:
    sentence = "With H = 2, H^b = 16 a delay of 50 s is no bottleneck any more."
    done = next(iter(found(records, one).values()), None)
    if done is None:
        return Claim(sentence, PLACE, OPEN, "not run yet", one.jobs, kind="modelled", family="time")
    share, compute = waiting(done, DELAYS[-1]), 16 * LOCAL_STEPS * of_step()
    state: State = "consistent" if share < HALF else "not consistent"
    evidence = (
        f"modelled: between two syncs of all there are {compute:.1f} s of compute; "
        f"{100 * share:.0f} % of the time is spent waiting, {100 * HALF:g} % would be a bottleneck"
    )
    return Claim(sentence, PLACE, state, evidence, one.jobs, kind="modelled", family="time")


def _clock() -> str:
    return (
        f"Time is simulated, not measured: {1e3 * of_step():.0f} ms a local step and "
        f"{1e3 * of_sync():.0f} ms a sync of all, from the paper's own minutes by H, "
        "and the delay on top; syncs within a node cost nothing. Steps and syncs are "
        "counted."
    )


PLOTS = (
    "The paper has pictures alone, of training accuracy; training loss is shown here. How long its "
    "runs took with 50 s of delay is not to be read from its text."
)
STUDY = Study(LABEL, lambda scale: jobs_of([*arms(scale).values()]), page)
