"""The search of the convex study against the same search written the obvious way with SciPy.

    python -m benchmarks.convex [--seed 0] [--data-dir ...]

The obvious way: one step size after the other, a loop over rounds, workers and local steps, a batch
by indexing a SciPy matrix, f of the model and of the average over all rows after every round; a run
is given up once it needs more rounds than the best of its family so far. Both ways draw the same
rows, so that they must find the same step size after the same number of rounds: that is checked
before a time is printed. Ours decides two targets in that time, the obvious way one. CPU seconds of
one thread, reading the data excluded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np
import torch
import tyro
from scipy.sparse import csr_array
from scipy.special import expit

from benchmarks.report import Finding, publish
from experiments.convex.samples import stream
from experiments.convex.search import Found, first_window
from experiments.convex.setup import Setup, local
from experiments.convex.stepsizes import FAMILIES, Gammas, StepSize
from experiments.convex.store import Store
from experiments.convex.study import Bench, find
from experiments.logistic import Logistic
from localsgd.schedule.fixed import Every

# Ours takes at most a tenth of the time.
BOUND = 0.1
# (K, B, H): the three that the paper's claims name, and one with fewer workers.
SAMPLE = ((16, 16, 16), (16, 64, 1), (16, 256, 1), (4, 16, 16))


@dataclass(frozen=True)
class Obvious:
    """f and its runs, written in the obvious way."""

    rows: csr_array
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
    """The search, without results from earlier runs."""
    with tempfile.TemporaryDirectory() as folder:
        return find(bench, setup, Store(Path(folder) / "runs.jsonl"))


@dataclass(frozen=True)
class Duel:
    """The times of both ways for one search.

    Args:
        obvious, ours: CPU seconds.
        obvious_runs, our_runs: step sizes run.
        rounds: what the best of them needs, found by both.
    """

    obvious: float
    ours: float
    obvious_runs: int
    our_runs: int
    rounds: int


def duel(bench: Bench, obvious: Obvious, setup: Setup) -> Duel:
    """Both searches of one configuration, which must agree."""
    true = list(bench.targets).index("true")
    began = time.process_time()
    found = ours(bench, setup)
    between = time.process_time()
    rounds, runs = obvious.search(setup, bench.targets["true"])
    ended = time.process_time()
    if rounds != found.best[true].reached.syncs[0]:
        raise SystemExit(f"{setup}: {rounds} rounds and {found.best[true]} disagree")
    return Duel(ended - between, between - began, runs, found.runs, rounds)


def finding(case: str, duels: Sequence[Duel], bound: float | None = None) -> Finding:
    """The line of one search, or of all together."""
    total = Duel(*(sum(column) for column in zip(*map(astuple, duels), strict=True)))
    cells = {
        "rounds": f"{total.rounds}",
        "obvious: s (runs)": f"{total.obvious:.1f} ({total.obvious_runs})",
        "ours: s (runs)": f"{total.ours:.2f} ({total.our_runs})",
        "times faster": f"{total.obvious / total.ours:.1f}",
    }
    share = total.ours / total.obvious
    figures = asdict(total) | {"times_faster": total.obvious / total.ours}
    rounded = {name: float(f"{value:.4g}") for name, value in figures.items()}
    return Finding(case, "convex study", cells, rounded, share, bound)


def main(seed: int = 0, data_dir: Path | None = None) -> None:
    """Prints a line for each configuration of the sample, and one for all."""
    torch.set_num_threads(1)
    bench = Bench.load("w8a", data_dir)
    problem = Logistic.load("w8a", data_dir)
    obvious = Obvious(problem.signed, problem.regularisation)
    duels, findings = [], []
    for workers, batch, local_steps in SAMPLE:
        duels.append(duel(bench, obvious, local(workers, batch, local_steps, seed)))
        case = f"K = {workers}, B = {batch}, H = {local_steps}"
        findings.append(finding(case, duels[-1:]))
        print(case, duels[-1], flush=True)
    findings.append(finding("all", duels, BOUND))
    title = "The search of the best step size against the obvious one, CPU seconds of one thread"
    if not publish("convex", title, findings):
        raise SystemExit(1)


if __name__ == "__main__":
    tyro.cli(main)
