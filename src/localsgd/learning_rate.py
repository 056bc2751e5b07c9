"""The learning rate of the paper's runs: scaled linearly, warmed up, decayed by steps.

With K workers of batch B, and γ the rate of one worker at batch B_0, the peak is γ K B / B_0 (Goyal
et al. 2017). It is reached from γ over the first steps, raised at every one of them, and divided at
set shares of the run (Lin et al. 2020, A.3, A.4.1).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepDecay:
    """γ at every step.

    Args:
        start: at step 0, where there is a warm-up.
        peak: after it.
        warmup_steps: over which the rate rises linearly; the first step with the peak is this one.
        decays: the first steps with a lower rate.
        factor: by which each decay multiplies.
    """

    start: float
    peak: float
    warmup_steps: int
    decays: tuple[int, ...]
    factor: float = 0.1

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return self.start + (self.peak - self.start) * step / self.warmup_steps
        return self.peak * self.factor ** sum(step >= decay for decay in self.decays)

    def decayed(self, step: int) -> bool:
        """Whether the first decay has passed."""
        return bool(self.decays) and step >= self.decays[0]
