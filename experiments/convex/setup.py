"""The configuration of a simulation: number of workers, batch, and schedule.

K: workers · B: rows of a worker's batch
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from localsgd.errors import UserError
from localsgd.schedule.fixed import Every, PostLocal, every, post_local
from localsgd.schedule.progress import Progress, Schedule


@dataclass(frozen=True)
class Qsr:
    """QSR: H = max(lowest, floor((alpha / gamma)^2)) at the start of a round.

    Gu, Lyu, Arora, Zhang, Huang, A Quadratic Synchronization Rule for Distributed Deep Learning,
    2024 (2310.14423). There gamma falls over a run of known length; here it falls as 1/t without
    end, so that H grows as t^2 and the last round would never end: `highest` is ours.

    Args:
        lowest: H_base.
        alpha: the growth coefficient.
        highest: what H stops at.
    """

    lowest: int
    alpha: float
    highest: int = 256

    def __call__(self, progress: Progress) -> int:
        if progress.learning_rate is None:
            raise UserError(
                "the quadratic synchronisation rule needs the learning rate; this loop tells none"
            )
        wanted = math.floor((self.alpha / progress.learning_rate) ** 2)
        return min(self.highest, max(self.lowest, wanted))


@dataclass(frozen=True)
class Setup:
    """One configuration of the study, apart from the step size.

    Args:
        batch: B.
        groups: members of a group of each level, innermost first: `(16,)` is 16 workers that
            synchronise
            together, `(4, 4)` four blocks of four. Their product is K.
        schedules: one for each level, innermost first.
        seed: of the workers' draws.
        lockstep: whether the rounds are the same for all step sizes; not so for the quadratic rule.
    """

    batch: int
    groups: tuple[int, ...]
    schedules: tuple[Schedule, ...]
    seed: int
    lockstep: bool = field(default=True)

    def __post_init__(self) -> None:
        if self.batch < 1 or min(self.groups, default=0) < 1:
            raise UserError(f"B = {self.batch}, groups {self.groups}: give whole numbers >= 1")
        if len(self.groups) != len(self.schedules):
            raise UserError(
                f"{len(self.groups)} level(s) of groups and {len(self.schedules)} schedule(s); "
                "give one for each level"
            )

    @property
    def workers(self) -> int:
        """The number of workers K."""
        return math.prod(self.groups)

    @property
    def levels(self) -> int:
        return len(self.groups)

    @property
    def label(self) -> str:
        """The schedules in words that name a cached run: `every(4)`, `every(2) every(8)`."""
        return " ".join(_label(schedule) for schedule in self.schedules)


def _label(schedule: Schedule) -> str:
    match schedule:
        case Every(local_steps):
            return f"every({local_steps})"
        case PostLocal(local_steps, after):
            return f"post_local({local_steps}, {after})"
        case Qsr(lowest, alpha, highest):
            return f"qsr({lowest}, {alpha:g}, {highest})"
    raise UserError(f"no label for the schedule {schedule!r}; runs with it can't be cached")


def local(workers: int, batch: int, local_steps: int, seed: int) -> Setup:
    """Local SGD; mini-batch SGD for H = 1."""
    return Setup(batch, (workers,), (every(local_steps),), seed)


def hierarchical(blocks: int, members: int, batch: int, steps: tuple[int, int], seed: int) -> Setup:
    """Hierarchical local SGD with `steps` = (H, H^b)."""
    return Setup(batch, (members, blocks), (every(steps[0]), every(steps[1])), seed)


def switched(workers: int, batch: int, local_steps: int, after: int, seed: int) -> Setup:
    """Post-local SGD: H = 1 for the first `after` steps."""
    return Setup(batch, (workers,), (post_local(local_steps, after),), seed)


def quadratic(workers: int, batch: int, lowest: int, alpha: float, seed: int) -> Setup:
    """Local SGD with the quadratic synchronisation rule."""
    return Setup(batch, (workers,), (Qsr(lowest, alpha),), seed, lockstep=False)
