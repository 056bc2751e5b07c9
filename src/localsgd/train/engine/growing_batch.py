"""A batch that grows instead of H: the baseline for local steps.

    w <- w - γ 1/(K H) sum_k sum_h g_k(w; batch k, h)

Instead of H local steps, every worker adds up the gradients of H batches at the same point, and all
take one step with their mean: mini-batch SGD with a batch that is H times as large (Smith et al.
2018; Lin et al. 2020, third row of the table of local SGD variants). Samples and syncs are those of
local SGD with the same H. Transforms of a worker's gradient (clipping, noise) apply once to the
mean of its H batches.

It is the core loop with two parts exchanged: local steps only add up gradients, and the sync
averages gradients and then steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from localsgd.averaging.level import Averaging
from localsgd.train.engine.hosted import Workers


class AddingUp:
    """Workers whose local steps only add up gradients."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    @property
    def step(self) -> int:
        return self._workers.step

    def backward(self) -> None:
        workers = self._workers
        if not workers.accumulated:
            workers.grads.zero_()
        workers.add_gradients()
        workers.accumulated += 1

    def apply(self, learning_rate: float) -> None:
        if self._workers.accumulated == 1:
            self._workers.accumulated_rate = learning_rate
        self._workers.count_step()


class StepOnMean:
    """The innermost level, over gradients; once its mean is shared, every worker steps.

    Args:
        level: over the workers' gradients.
        workers: step, with the learning rate of the first batch.
    """

    def __init__(self, level: Averaging, workers: Workers) -> None:
        self._level = level
        self._workers = workers
        self._due = False

    may_differ = False

    def average(self) -> None:
        self._workers.grads /= max(1, self._workers.accumulated)
        self._workers.transform_gradients(self._workers.step - 1)  # the step is counted already
        self._level.average()
        self._due = True

    def final_average(self) -> None:
        if self._workers.accumulated:
            self.average()

    def share(self) -> None:
        self._level.share()
        if self._due:
            self._due = False
            self._workers.step_all(self._workers.accumulated_rate)
            self._workers.accumulated = 0

    def catch_up(self) -> None:
        self._level.catch_up()

    def begin_round(self, learning_rate: float) -> None:
        pass


def growing(workers: Workers, gradients: Sequence[Averaging]) -> tuple[AddingUp, list[Averaging]]:
    """What the core loop trains with in place of `workers` and the levels over their models.

    Args:
        gradients: levels over the workers' gradients, innermost first.
    """
    return AddingUp(workers), [StepOnMean(gradients[0], workers), *gradients[1:]]
