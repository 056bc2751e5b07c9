"""One seed of one of the paper's two figures as a job: every configuration searched, its times."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array

from experiments.convex import designs
from experiments.convex.setup import Setup, local
from experiments.convex.store import Store
from experiments.convex.study import COMMUNICATION, Bench, config, critical_path, find
from experiments.logistic import Examples, Logistic, minimise
from experiments.study import Record, Workplace

EARLIER = Path(__file__).parents[1] / "results" / "convex"
MADE = "made"
"""A small synthetic problem, for runs that only show that everything works."""
TINY = {
    "time": tuple((4, batch, h) for batch in (16, 64, 256) for h in (1, 16)),
    "speedup": tuple((workers, 16, h) for workers in (1, 4) for h in (1, 16)),
}
"""K, B and H of the configurations that are searched on it."""
Figure = Literal["time", "speedup"]


@dataclass(frozen=True)
class ConvexJob:
    """The best step size for each point of a figure.

    Args:
        data: a LIBSVM data set, or `made`.
        figure: time by (B, H), or speed-up by K and H.
        seed: of the workers' draws.
    """

    data: str
    figure: Figure
    seed: int

    @property
    def key(self) -> Mapping[str, Any]:
        return {"kind": "convex", "task": self.data, "figure": self.figure, "seed": self.seed}

    @property
    def title(self) -> str:
        return f"convex problem {self.data}, {self.figure}, seed {self.seed}"

    def setups(self) -> list[Setup]:
        """The configurations to search."""
        if self.data == MADE:
            return [local(*point, self.seed) for point in TINY[self.figure]]
        all_seeds = {"time": designs.time_figure, "speedup": designs.speedup_figure}[self.figure]
        return [setup for setup in all_seeds(self.seed + 1) if setup.seed == self.seed]

    def carry_out(self, place: Workplace) -> Record:
        bench = _bench(self.data, place.data_dir)
        store = self._store(place.scratch / "convex")
        began, setups = time.process_time(), self.setups()
        found = {setup: find(bench, setup, store) for setup in setups}
        earlier = sum(store.seconds(config(bench, setup)) for setup in setups)
        return {
            "seconds": round(max(earlier, time.process_time() - began), 1),
            "searches": len(found),
            "runs": sum(one.runs for one in found.values()),
            "minimum": bench.minimum.value,
            "gradients": {
                target: [
                    [setup.workers, setup.batch, _local_steps(setup), _time(setup, one, index)]
                    for setup, one in found.items()
                ]
                for index, target in enumerate(bench.targets)
            },
        }

    def _store(self, folder: Path) -> Store:
        """The store in `folder`, which begins with a copy of the runs of earlier studies."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.data}-{self.figure}-{self.seed}.jsonl"
        kept = EARLIER / f"{self.data}.jsonl"
        if kept.is_file() and not path.exists():
            partial = path.with_suffix(".part")
            shutil.copyfile(kept, partial)
            partial.replace(path)
        return Store(path)


def _local_steps(setup: Setup) -> int:
    return int(setup.label.removeprefix("every(").removesuffix(")"))


def _time(setup: Setup, found: Any, target: int) -> float:
    reached = found.best[target].reached
    return critical_path(reached.steps, reached.syncs, setup.batch, [COMMUNICATION])


def made() -> Logistic:
    """300 sparse binary rows of 20 features, a fifth positive, some equal, some empty."""
    rng = np.random.default_rng(0)
    dense = (rng.random((300, 20)) < 0.12).astype(float)
    positive = dense @ rng.normal(size=20) + rng.normal(size=300) > 1.2
    return Logistic.of(Examples(csr_array(dense), positive, (-1.0, 1.0)))


def _bench(data: str, data_dir: Path | None) -> Bench:
    if data != MADE:
        return Bench.load(data, data_dir)
    problem = made()
    return Bench.of(MADE, problem, minimise(problem))
