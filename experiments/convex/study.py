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
from experiments.convex.simulation import Data, Simulation
from experiments.convex.stepsizes import Family, StepSize
from experiments.convex.store import Store
from localsgd.errors import UserError
from localsgd.tasks.logistic import Logistic, Minimum, known_minimum

EPSILON = 0.005
PAPER_MINIMUM = {"w8a": 0.126433176216545}
"""f* as Lin et al. (2020) print it, where they do."""
COMMUNICATION = 25.0
"""Gradients that one communication costs."""

# Goes up when a change of the rules makes old runs wrong.
_RULES = 1


@dataclass(frozen=True, eq=False)
class Bench:
    """A data set, ready to be searched on.

    Args:
        name: of the data set.
        minimum: f*, computed.
        targets: by name, descending.
    """

    name: str
    data: Data
    objective: Objective
    minimum: Minimum
    targets: Mapping[str, float]

    @staticmethod
    def load(name: str, data_dir: Path | None = None) -> Bench:
        """Data set `name` with targets f* + epsilon, also for the f* that the paper prints."""
        problem = Logistic.load(name, data_dir)
        return Bench.of(name, problem, known_minimum(problem, _cache()))

    @staticmethod
    def of(name: str, problem: Logistic, minimum: Minimum) -> Bench:
        """The same for a problem at hand."""
        targets = {"true": minimum.value + EPSILON}
        if name in PAPER_MINIMUM:
            targets["paper"] = PAPER_MINIMUM[name] + EPSILON
        check_targets(list(targets.values()), minimum.value)
        descending = dict(sorted(targets.items(), key=lambda item: -item[1]))
        return Bench(name, Data.of(problem), Objective(problem), minimum, descending)


def _cache() -> Path:
    return Path.home() / ".cache" / "localsgd"


def config(name: str, targets: Iterable[str], setup: Setup) -> dict[str, Any]:
    """What names a cached run: data set, names of the targets, configuration."""
    return {
        "data": name,
        "schedule": setup.label,
        "groups": list(setup.groups),
        "batch": setup.batch,
        "seed": setup.seed,
        "epsilon": EPSILON,
        "targets": list(targets),
        "rules": _RULES,
    }


def critical_path(
    steps: int, agreements: Sequence[int], batch: int, factors: Sequence[float]
) -> float:
    """Time in gradients: those of one worker, one after the other, and what the agreements cost.

    Args:
        steps: local steps.
        agreements: by level, innermost first.
        batch: B.
        factors: gradients that an agreement of each level costs.
    """
    return steps * batch + sum(f * a for f, a in zip(factors, agreements, strict=True))


def find(
    bench: Bench, setup: Setup, store: Store, factors: Sequence[float] = (COMMUNICATION,)
) -> Found:
    """The best step sizes of one configuration, from `store` as far as they are known.

    Args:
        bench: the data.
        setup: the configuration.
        store: where runs are kept.
        factors: gradients that an agreement of each level costs; it decides between step sizes only
            where their rounds differ (the quadratic rule).
    """
    key = config(bench.name, bench.targets, setup)

    def run(sizes: Sequence[StepSize], caps: Mapping[Family, Sequence[float]]) -> list[Run]:
        began = time.process_time()
        # What does not run in lockstep is asked for again, one at a time, under the caps of then.
        simulation = Simulation(bench.data, setup, sizes if setup.lockstep else sizes[:1])
        clock: Clock = in_rounds if setup.lockstep else partial(_cost, setup=setup, factors=factors)
        runs = race(simulation, bench.objective, list(bench.targets.values()), caps, clock)
        store.add(key, runs, time.process_time() - began)
        return runs

    return search(run, store.runs(key), len(bench.targets), _window(setup))


def recall(name: str, targets: Sequence[str], setup: Setup, store: Store) -> Found:
    """What `find` found, from the store alone.

    Args:
        name: of the data set.
        targets: their names, as in `Bench.targets`.
        setup: the configuration.
        store: where runs are kept.

    Raises:
        UserError: the search of this configuration has not ended.
    """
    key = config(name, targets, setup)

    def run(sizes: Sequence[StepSize], caps: Mapping[Family, Sequence[float]]) -> list[Run]:
        raise UserError(f"{store.path} lacks runs of {key}; run the experiment to its end first")

    return search(run, store.runs(key), len(targets), _window(setup))


def _window(setup: Setup) -> Mapping[Family, range]:
    window = first_window(setup.workers * setup.batch)
    # With a constant gamma the quadratic rule is local SGD with a constant H.
    return window if setup.lockstep else {"decaying": window["decaying"]}


def _cost(simulation: Simulation, setup: Setup, factors: Sequence[float]) -> float:
    return critical_path(simulation.steps, simulation.agreements, setup.batch, factors)


def find_all(bench: Bench, setups: Iterable[Setup], store: Store) -> dict[Setup, Found]:
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
            found[setup] = find(bench, setup, store)
            progress.advance(task)
    return found
