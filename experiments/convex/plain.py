"""The simulation written plainly: one step size, a loop over workers, `rounds` and `Level`.

It is what `simulation.py` must equal, and too slow for the study.

K: workers · d: features
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from experiments.convex.samples import stream
from experiments.convex.setup import Setup
from experiments.convex.stepsizes import Gammas, StepSize
from experiments.logistic import Logistic
from experiments.logistic.rows import Floats
from localsgd.averaging.level import Level
from localsgd.schedule.progress import Progress
from localsgd.schedule.rounds import rounds
from localsgd.wire import InProcess


def averaged_models(problem: Logistic, setup: Setup, size: StepSize) -> Iterator[Floats]:
    """The model [d] after each round of the outermost level, without end."""
    gammas = Gammas([size], problem.examples)
    streams = [stream(setup.seed, worker) for worker in range(setup.workers)]
    rows = torch.zeros(setup.workers, problem.features, dtype=torch.float64)
    levels = _levels(rows, setup.groups)
    step = 0

    def progress() -> Progress:
        return Progress(step=step, learning_rate=float(gammas(step)[0]))

    for local_steps, depth, _ in rounds(setup.schedules, progress):
        for _ in range(local_steps):
            gamma = gammas(step)[0]
            for own, row in zip(streams, rows.numpy(), strict=True):
                batch = own.integers(problem.examples, size=setup.batch)
                row -= gamma * problem.batch_gradient(row, batch)
            step += 1
        for level in levels[:depth]:
            level.average()
        for level in reversed(levels[:depth]):
            level.share()
        if depth == setup.levels:
            yield rows[0].numpy().copy()


def weighted_average(models: list[Floats]) -> Floats:
    """The mean of models w_1, ..., w_R with weights proportional to 1, ..., R."""
    return np.average(models, axis=0, weights=np.arange(1, len(models) + 1))


def _levels(rows: torch.Tensor, groups: tuple[int, ...]) -> list[Level]:
    levels: list[Level] = []
    members = rows
    for size in groups:
        level = Level(members.view(-1, size, rows.shape[1]), InProcess(size))
        levels.append(level)
        members = level.anchor
    return levels
