"""The search of the convex study against the same search written the obvious way with SciPy.

    python benchmarks/convex.py [--seed 0] [--data-dir ...]

The obvious way: one step size after the other, a loop over rounds, workers and local steps, a batch
    by indexing a SciPy
matrix, f of the model and of the average over all rows after every round; a run is given up once it
needs more rounds than the best of its family so far. Both ways draw the same rows, so that they
must find the same step size after the same number of rounds: that is checked before a time is
printed. CPU seconds of one thread, reading the data excluded.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from scipy.sparse import csr_matrix
from scipy.special import expit

from experiments.convex.samples import stream
from experiments.convex.search import Found, first_window
from experiments.convex.setup import Setup, local
from experiments.convex.stepsizes import FAMILIES, Gammas, StepSize
from experiments.convex.store import Store
from experiments.convex.study import Bench, find
from localsgd.schedule import Every
from localsgd.tasks.logistic import Logistic

# (K, B, H): from the first figure a small and a large batch with and without local steps, and from
# the second few and many workers.
SAMPLE = ((16, 16, 1), (16, 16, 16), (16, 256, 4), (1, 16, 16), (64, 16, 4))


@dataclass(frozen=True)
class Obvious:
    """f and its runs as one writes them down."""

    rows: csr_matrix
    regularisation: float

    def value(self, w: np.ndarray) -> float:
        """f(w)."""
        losses = np.logaddexp(0, self.rows @ w)
        return float(np.mean(losses) + self.regularisation / 2 * (w @ w))

    def run(self, setup: Setup, size: StepSize, target: float, most: float) -> int | None:
        """Rounds to the target; `None` for more than `most`."""
        examples, features = self.rows.shape
        schedule = setup.schedules[0]
        assert isinstance(schedule, Every)
        local_steps = schedule.local_steps
        gammas = Gammas([size], examples)
        streams = [stream(setup.seed, worker) for worker in range(setup.workers)]
        model, average = np.zeros(features), np.zeros(features)
        rounds = 0
        while rounds < most:
            models = []
            for own in streams:
                w = model.copy()
                for step in range(rounds * local_steps, (rounds + 1) * local_steps):
                    batch = self.rows[own.integers(examples, size=setup.batch)]
                    gradient = batch.T @ expit(batch @ w) / setup.batch + self.regularisation * w
                    w -= gammas(step)[0] * gradient
                models.append(w)
            model = np.mean(models, axis=0)
            rounds += 1
            average += 2 / (rounds + 1) * (model - average)
            if min(self.value(model), self.value(average)) <= target:
                return rounds
        return None

    def search(self, setup: Setup, target: float) -> tuple[int, int]:
        """The fewest rounds of any step size of the first window, and how many were run."""
        fewest, runs = [], 0
        for family in FAMILIES:
            best = np.inf
            for exponent in first_window(setup.workers * setup.batch)[family]:
                runs += 1
                best = self.run(setup, StepSize(family, exponent), target, best) or best
            fewest.append(best)
        return int(min(fewest)), runs


def ours(bench: Bench, setup: Setup) -> Found:
    """The search, with nothing kept from before."""
    with tempfile.TemporaryDirectory() as folder:
        return find(bench, setup, Store(Path(folder) / "runs.jsonl"))


def main(seed: int = 0, data_dir: Path | None = None) -> None:
    """Prints a line for each configuration of the sample."""
    torch.set_num_threads(1)
    bench = Bench.load("w8a", data_dir)
    problem = Logistic.load("w8a", data_dir)
    rows = problem.signed
    matrix = csr_matrix((rows.values, rows.columns, rows.starts), shape=(len(rows), rows.width))
    obvious = Obvious(matrix, problem.regularisation)
    true = list(bench.targets).index("true")
    totals = np.zeros(2)
    print("   K    B    H  rounds  obvious: s (runs)  ours: s (runs)  ratio")
    for workers, batch, local_steps in SAMPLE:
        setup = local(workers, batch, local_steps, seed)
        began = time.process_time()
        found = ours(bench, setup)
        between = time.process_time()
        rounds, runs = obvious.search(setup, bench.targets["true"])
        ended = time.process_time()
        if rounds != found.best[true].reached.agreements[0]:
            raise SystemExit(f"{setup}: {rounds} rounds and {found.best[true]} disagree")
        seconds = np.array([ended - between, between - began])
        totals += seconds
        print(
            f"{workers:4} {batch:4} {local_steps:4} {rounds:7} {seconds[0]:11.1f} ({runs:3}) "
            f"{seconds[1]:9.2f} ({found.runs:3}) {seconds[0] / seconds[1]:6.0f}",
            flush=True,
        )
    print(f"all {totals[0]:27.1f} {totals[1]:15.2f} {totals[0] / totals[1]:12.0f}")


if __name__ == "__main__":
    tyro.cli(main)
