"""The learning rate of a run: scaled, warmed up, and lowered by steps, by a cosine or in cycles.

With K workers of batch B, and γ the rate of one worker at batch B_0, the peak of the paper's runs
is γ K B / B_0 (Goyal et al. 2017). It is reached from γ over the first steps, raised at every one
of them, and divided at set shares of the run (Lin et al. 2020, A.3, A.4.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

SCALINGS: dict[str, Callable[[float, float], float]] = {
    "linear": lambda globally, locally: globally,
    "sqrt": lambda globally, locally: math.sqrt(globally),
    "local": lambda globally, locally: locally,
    "local-sqrt": lambda globally, locally: math.sqrt(locally),
    "none": lambda globally, locally: 1.0,
}
"""Factors of the learning rate by name, as functions of K B / B_0 and B / B_0."""


@dataclass(frozen=True)
class StepDecay:
    """A learning rate γ that falls in steps.

    Args:
        start: the rate at step 0, if there is a warm-up.
        peak: the rate after the warm-up.
        warmup_steps: steps over which the rate rises linearly; also the first step with the peak.
        decays: the first steps with a lower rate.
        factor: the factor of each decay.
    """

    start: float
    peak: float
    warmup_steps: int
    decays: tuple[int, ...]
    factor: float = 0.1

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return _rising(self.start, self.peak, step, self.warmup_steps)
        return self.peak * self.factor ** sum(step >= decay for decay in self.decays)

    def decayed(self, step: int) -> bool:
        """Whether the first decay has passed."""
        return bool(self.decays) and step >= self.decays[0]


@dataclass(frozen=True)
class Cosine:
    """γ = floor + (peak - floor) (1 + cos(π t/T)) / 2 in every cycle of T steps.

    One cycle is cosine annealing; several are warm restarts (Loshchilov and Hutter 2017, Eq. 5).

    Args:
        start: the rate at step 0, if there is a warm-up.
        peak: the rate after the warm-up, and at the start of every later cycle.
        warmup_steps: steps over which the rate rises linearly, in the first cycle.
        cycle: T.
        floor: the rate that a cycle approaches at its end.
    """

    start: float
    peak: float
    warmup_steps: int
    cycle: int
    floor: float = 0.0

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return _rising(self.start, self.peak, step, self.warmup_steps)
        first = self.warmup_steps if step < self.cycle else 0
        done = (step % self.cycle - first) / max(1, self.cycle - first)
        return self.floor + (self.peak - self.floor) * (1 + math.cos(math.pi * done)) / 2

    @property
    def decays(self) -> tuple[int, ...]:
        """No decay steps: the rate falls all the time."""
        return ()

    def decayed(self, step: int) -> bool:
        """Whether the first decay has passed: never, since there is none."""
        return False


LearningRate: TypeAlias = StepDecay | Cosine
"""A function from the step to γ."""


def _rising(start: float, peak: float, step: int, steps: int) -> float:
    return start + (peak - start) * step / steps
