"""K workers and R step sizes at once, exactly, in float64.

A column is one run: K models under one step size. All columns draw the same rows, so that a local
step of all workers of all columns is two products with one sparse matrix, whose blocks on the
diagonal are the workers' batches:

    S = sigma(C W),        W <- (1 - gamma lambda) W - gamma / B C^T S

Workers that have just averaged hold one model; a round of one step then is one step on their joined
batch, the mini-batch SGD that it is. `localsgd.schedule.rounds.rounds` says when the levels
average, as in the core loop. `plain.py` is the same without any of this.

K: workers · d: features · R: columns · B: rows of a worker's batch · N: rows of the batches of all
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from experiments.convex.objective import sigmoid
from experiments.convex.products import Batch, add_transposed, multiply
from experiments.convex.samples import Batches
from experiments.convex.setup import Setup
from experiments.convex.stepsizes import Gammas, StepSize
from experiments.logistic import Logistic
from experiments.logistic.rows import Floats, Integers
from localsgd.errors import UserError
from localsgd.schedule.progress import Progress
from localsgd.schedule.rounds import rounds


class Simulation:
    """Runs from w = 0 under each of `sizes`.

    Attributes:
        models: [d, R], what the outermost level averaged to last.
        averages: [d, R], the mean of these over the rounds r = 1, 2, ... with weights proportional
            to r.
        rounds: rounds of the outermost level done.
        steps: local steps done by each worker.
        syncs: syncs by level, innermost first; one that an outer level takes over is
            counted there alone.
    """

    def __init__(self, problem: Logistic, setup: Setup, sizes: Sequence[StepSize]) -> None:
        if not setup.lockstep and len(sizes) > 1:
            raise UserError(
                f"{setup.label} has other rounds for each step size; simulate one at a time"
            )
        self.sizes = list(sizes)
        self.models = np.zeros((problem.features, len(sizes)))
        self.averages = np.zeros((problem.features, len(sizes)))
        self.rounds = 0
        self.steps = 0
        self.syncs = [0] * setup.levels
        self._setup = setup
        self._problem = problem
        self._batches = Batches(problem.signed, setup.workers, setup.batch, setup.seed)
        self._gammas = Gammas(sizes, problem.examples)
        self._rounds = rounds(setup.schedules, self._progress)

    def next_round(self) -> None:
        """Runs until the outermost level has averaged, and adds its model to the average."""
        apart: Floats | None = None
        for local_steps, depth, _ in self._rounds:
            self.syncs[depth - 1] += 1
            outermost = depth == self._setup.levels
            if apart is None and local_steps == 1 and outermost:
                self._step(self.models, self._batches.joined(), self._setup.workers)
                break
            if apart is None:
                apart = np.tile(self.models, (self._setup.workers, 1))
            for _ in range(local_steps):
                self._step(apart, self._batches.apart(), 1)
            if outermost:
                self.models = self._grouped(apart, depth).mean(axis=1)[0]
                break
            groups = self._grouped(apart, depth)
            groups[:] = groups.mean(axis=1, keepdims=True)
        self.rounds += 1
        self.averages += 2 / (self.rounds + 1) * (self.models - self.averages)

    def keep(self, columns: Integers) -> None:
        """Keeps only these columns."""
        self.sizes = [self.sizes[column] for column in columns]
        self.models = np.ascontiguousarray(self.models[:, columns])
        self.averages = np.ascontiguousarray(self.averages[:, columns])
        self._gammas = Gammas(self.sizes, self._problem.examples)

    def _step(self, models: Floats, batch: Batch, joined: int) -> None:
        """One local step, in place, of models [K d, R], or [d, R] of `joined` workers together."""
        gammas = self._gammas(self.steps)
        pulls = sigmoid(multiply(batch, models))
        pulls *= -gammas / (joined * self._setup.batch)
        models *= 1 - gammas * self._problem.regularisation
        add_transposed(batch, pulls, models)
        self.steps += 1

    def _grouped(self, apart: Floats, depth: int) -> Floats:
        """[K d, R] seen as [groups, members, d, R] of the level at `depth`."""
        members = int(np.prod(self._setup.groups[:depth]))
        features, columns = self.models.shape
        return apart.reshape(-1, members, features, columns)

    def _progress(self) -> Progress:
        rate = None if self._setup.lockstep else float(self._gammas(self.steps)[0])
        return Progress(step=self.steps, learning_rate=rate)
