"""Configurations searched one after the other, from a file as far as they are known."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.convex.objective import Objective, check_targets
from experiments.convex.race import Clock, Run, in_rounds, race
from experiments.convex.search import Found, first_window, search
from experiments.convex.setup import Setup
from experiments.convex.simulation import Simulation
from experiments.convex.stepsizes import Family, StepSize
from experiments.convex.store import Store
from experiments.logistic import Logistic, Minimum, known_minimum

EPSILON = 0.005
PAPER_MINIMUM = {"w8a": 0.126433176216545}
"""f* as printed by Lin et al. (2020), for the data sets that they have."""
COMMUNICATION = 25.0
"""Cost of one communication, in gradients."""

# Goes up when a change of the rules makes old runs wrong.
_RULES = 1


@dataclass(frozen=True, eq=False)
class Bench:
    """A data set, ready to be searched on.

    Args:
        name: of the data set.
        minimum: f*, computed.
        targets: by name, descending.
        epsilon: how far above f* they are.
    """

    name: str
    problem: Logistic
    objective: Objective
    minimum: Minimum
    targets: Mapping[str, float]
    epsilon: float = EPSILON

    @staticmethod
    def load(name: str, data_dir: Path | None = None, epsilon: float = EPSILON) -> Bench:
        """Data set `name` with targets f* + epsilon, also for the f* that the paper prints."""
        problem = Logistic.load(name, data_dir)
        return Bench.of(name, problem, known_minimum(problem, _cache()), epsilon)

    @staticmethod
    def of(name: str, problem: Logistic, minimum: Minimum, epsilon: float = EPSILON) -> Bench:
        """The same for a problem at hand."""
        targets = {"true": minimum.value + epsilon}
        if name in PAPER_MINIMUM:
            targets["paper"] = PAPER_MINIMUM[name] + epsilon
        check_targets(list(targets.values()), minimum.value)
        descending = dict(sorted(targets.items(), key=lambda item: -item[1]))
        return Bench(name, problem, Objective(problem), minimum, descending, epsilon)

    def words(self, target: str) -> str:
        """A target in words."""
        whose = "the paper's " if target == "paper" else ""
        return f"{whose}f* + {self.epsilon:g}"


def _cache() -> Path:
    return Path.home() / ".cache" / "localsgd"


def config(
    bench: Bench, setup: Setup, factors: Sequence[float] = (COMMUNICATION,)
) -> dict[str, Any]:
    """What names a cached run: data set, targets, configuration, and prices if they decide."""
    return {
        "data": bench.name,
        "schedule": setup.label,
        "groups": list(setup.groups),
        "batch": setup.batch,
        "seed": setup.seed,
        "epsilon": bench.epsilon,
        "targets": list(bench.targets),
        "rules": _RULES,
        **({} if setup.lockstep else {"factors": list(factors[-setup.levels :])}),
    }


def critical_path(steps: int, syncs: Sequence[int], batch: int, factors: Sequence[float]) -> float:
    """Time in gradients: those of one worker, one after the other, and what the syncs cost.

    Args:
        steps: local steps.
        syncs: by level, innermost first.
        batch: B.
        factors: gradients that a sync of each level costs.
    """
    return steps * batch + sum(f * a for f, a in zip(factors, syncs, strict=True))


def find(
    bench: Bench, setup: Setup, store: Store, factors: Sequence[float] = (COMMUNICATION,)
) -> Found:
    """The best step sizes of one configuration, from `store` as far as they are known.

    Args:
        bench: the data.
        setup: the configuration.
        store: where runs are kept.
        factors: gradients that a sync of each level costs, of which a setup takes the last;
            they decide between step sizes only where their rounds differ (the quadratic rule).
    """
    key = config(bench, setup, factors)

    def run(sizes: Sequence[StepSize], caps: Mapping[Family, Sequence[float]]) -> list[Run]:
        began = time.process_time()
        # What does not run in lockstep is asked for again, one at a time, under the caps of then.
        simulation = Simulation(bench.problem, setup, sizes if setup.lockstep else sizes[:1])
        clock: Clock = in_rounds if setup.lockstep else partial(_cost, setup=setup, factors=factors)
        runs = race(simulation, bench.objective, list(bench.targets.values()), caps, clock)
        store.add(key, runs, time.process_time() - began)
        return runs

    return search(run, store.runs(key), len(bench.targets), _window(setup))


def _window(setup: Setup) -> Mapping[Family, range]:
    window = first_window(setup.workers * setup.batch)
    # With a constant gamma the quadratic rule is local SGD with a constant H.
    return window if setup.lockstep else {"decaying": window["decaying"]}


def _cost(simulation: Simulation, setup: Setup, factors: Sequence[float]) -> float:
    own = factors[-setup.levels :]
    return critical_path(simulation.steps, simulation.syncs, setup.batch, own)


def find_all(
    bench: Bench,
    setups: Iterable[Setup],
    store: Store,
    factors: Sequence[float] = (COMMUNICATION,),
) -> dict[Setup, Found]:
    """`find` for each of `setups`, with progress."""
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    setups = list(setups)
    found: dict[Setup, Found] = {}
    columns = (
        *Progress.get_default_columns(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns) as progress:
        task = progress.add_task(bench.name, total=len(setups), now="")
        for setup in setups:
            now = f"K={setup.workers} B={setup.batch} {setup.label} seed {setup.seed}"
            progress.update(task, now=now)
            found[setup] = find(bench, setup, store, factors)
            progress.advance(task)
    return found
