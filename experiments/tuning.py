"""Learning rates as the paper tunes them: a grid around the linearly scaled one that grows.

For K = 16 the paper tries 15, 15.5, 16, 16.5 and 17 times the rate of one worker; for any K those
are 15/16 to 17/16 of the linearly scaled rate. Ours reaches from 1/16 of that rate to twice it as
well: where the scaled rate is far too high all of the five are alike but for chance, which puts the
best of them inside. While the best is at an end, the grid grows there, by a step that doubles each
time. Tuning runs have a seed of their own, which no result has, and are judged by the test metric
at the end of training, as in the paper. All are jobs like others: kept, shared and spread over
processes, so that a grid that was cut off goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import msgspec

from experiments.arms import Arm, is_diverged
from experiments.study import Picture, Records
from experiments.training import TrainJob
from localsgd.landscape.figures.style import panels
from localsgd.train.config.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Name = TypeVar("Name")
FACTORS = (1 / 16, 1 / 4, 1 / 2, 15 / 16, 15.5 / 16, 1.0, 16.5 / 16, 17 / 16, 2.0)
OF_THE_PAPER = (15 / 16, 15.5 / 16, 1.0, 16.5 / 16, 17 / 16)
HALF_TO_TWICE = (1 / 2, *OF_THE_PAPER, 2.0)
STEP = 0.5 / 16
SEED = 1000
MOST = 25
"""Points of a grid, at which it is given up: the best one so far is taken."""


def due(known: Mapping[float, float], grid: Sequence[float] = FACTORS) -> list[float]:
    """Factors to try next, from what is known of others (larger is better); none if the best is
    inside.

    >>> due({}) == list(FACTORS)
    True
    >>> due({factor: -abs(factor - 1) for factor in FACTORS})
    []
    >>> due({factor: -factor for factor in FACTORS})
    [0.03125]
    >>> due({factor: factor for factor in FACTORS})
    [3.875]
    """
    if missing := [factor for factor in grid if factor not in known]:
        return missing
    ordered = sorted(known)
    best = _best(known)
    if best not in (ordered[0], ordered[-1]) or len(known) >= MOST:
        return []
    if best == ordered[-1]:
        return [best + 2 * (ordered[-1] - ordered[-2])]
    lower = best - 2 * (ordered[1] - ordered[0])
    return [lower if lower > 0 else best / 2]


def _best(known: Mapping[float, float]) -> float:
    """The best factor: nearest to 1 among equal ones, the lowest if all have diverged."""
    if max(known.values()) == float("-inf"):
        return min(known)
    return max(known, key=lambda factor: (known[factor], -abs(math.log(factor))))


def point(one: Arm, factor: float) -> TrainJob:
    """The tuning run of an arm at a multiple of its rate."""
    return replace(one.jobs[0], run=_scaled(one.jobs[0], factor, SEED))


def scores(records: Records, one: Arm, grid: Sequence[float] = FACTORS) -> dict[float, float]:
    """What is known of an arm's grid, by factor: the larger the better. What diverged is worst."""
    found: dict[float, float] = {}
    while True:
        new = {}
        for factor in due(found, grid):
            record = records.of(point(one, factor))
            if record is not None:
                new[factor] = _score(record)
        if not new:
            return found
        found |= new


def _score(record: Mapping[str, float | None]) -> float:
    name = "test_perplexity" if "test_perplexity" in record else "test_accuracy"
    value = record[name]
    if value is None or is_diverged(record):
        return float("-inf")
    return -value if name == "test_perplexity" else value


def tuned(records: Records, one: Arm) -> Arm | None:
    """The arm at the best point of its grid; `None` while that is not known."""
    factor = best_factor(records, one)
    return None if factor is None else at(one, factor)


def best_factor(records: Records, one: Arm, grid: Sequence[float] = FACTORS) -> float | None:
    """The best factor of an arm's grid; `None` while that is not known."""
    known = scores(records, one, grid)
    return None if due(known, grid) else _best(known)


def at(one: Arm, factor: float) -> Arm:
    """The arm with its rate multiplied by `factor`."""
    jobs = (replace(job, run=_scaled(job, factor, job.run.seed)) for job in one.jobs)
    return Arm(f"{one.name}, rate x {factor:.4g}", tuple(jobs), tuned=True)


def later(records: Records, arms: Iterable[Arm]) -> list[TrainJob]:
    """What is to be run next: points of grids, and then the arms with the rates that were found.
    Nothing at a scale that tunes nothing.
    """
    if not records.scale.tunes:
        return []
    jobs: list[TrainJob] = []
    for one in arms:
        known = scores(records, one)
        jobs += [point(one, factor) for factor in due(known)]
        best = tuned(records, one)
        jobs += best.jobs if best else ()
    return jobs


def applied(records: Records, by: Mapping[Name, Arm], names: Iterable[Name]) -> dict[Name, Arm]:
    """Arms by name, those of `names` with tuned rates where the scale tunes and they are known."""
    if not records.scale.tunes:
        return dict(by)
    best = {name: tuned(records, by[name]) for name in names}
    return {name: best.get(name) or one for name, one in by.items()}


def taken_over(records: Records, by: Mapping[Name, Arm], base: Name) -> dict[Name, Arm]:
    """Arms by name, all of them at the factor found for `base` where the scale tunes and it is
    known: so larger H take over the rate that was tuned at H = 1.
    """
    factor = best_factor(records, by[base]) if records.scale.tunes else None
    return {name: one if factor is None else at(one, factor) for name, one in by.items()}


def pictures(
    records: Records, arms: Iterable[Arm], grid: Sequence[float] = FACTORS, name: str = ""
) -> list[Picture]:
    """The grids that have points, each as a picture; `name` goes into the names of their files."""
    if not records.scale.tunes:
        return []
    numbered = enumerate(arms, start=1)
    return [
        _picture(records, f"rates-{name.lower() or index}", one, grid)
        for index, one in numbered
        if scores(records, one, grid)
    ]


def _picture(records: Records, name: str, one: Arm, grid: Sequence[float]) -> Picture:
    def draw() -> Figure:
        known = scores(records, one, grid)
        figure, (axes,) = panels()
        places = sorted(known)
        axes.plot(places, [known[place] for place in places], "o-", ms=3, lw=1.2)
        axes.axvline(1.0, color="grey", lw=0.8, ls=":")
        axes.set(
            xlabel="learning rate over the linearly scaled one", ylabel="score", title=one.name
        )
        return figure

    jobs = [point(one, factor) for factor in scores(records, one, grid)]
    return Picture(name, f"The grid of rates of {one.name}", draw, jobs)


def _scaled(job: TrainJob, factor: float, seed: int) -> Run:
    rate = (job.run.lr or 0.0) * factor
    return msgspec.structs.replace(job.run, lr=float(f"{rate:.6g}"), seed=seed)
