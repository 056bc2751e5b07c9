"""A schedule whose H doubles."""

from __future__ import annotations

from dataclasses import dataclass

from localsgd import Progress
from localsgd.schedule import Observing


@dataclass(frozen=True)
class Doubling(Observing):
    """H = 1 at first; it doubles every `period` steps, up to `--local-steps`."""

    local_steps: int
    period: int = 20
    sees = ()  # the step alone

    def __call__(self, progress: Progress) -> int:
        return min(self.local_steps, 2 ** min(30, progress.step // self.period))
