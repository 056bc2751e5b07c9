"""Schedules of H that depend on the step alone.

A schedule is a function of `Progress` that returns the length of the next round of one level: H
local steps for the innermost level, H^b rounds of the level inside for any other. `rounds` turns
one schedule for each level into the sequence "take h local steps, then let the d innermost levels
average", and nothing else in the package decides when anything is averaged.

    >>> picture([every(2), every(2)], steps=8)
    '..1..2..1..2'
    >>> picture([post_local(3, after=2)], steps=8)
    '.1.1...1...1'

Schedules are frozen values: they compare, print and can be kept in a configuration. A new one is a
callable of the same shape; everything that it remembers it writes into `Progress.memory`, so that a
resumed run goes on as if undisturbed. One that looks at the step alone says so with `sees = ()`:
it can be drawn, and needs nothing from the other workers. Schedules that judge by the run
itself are in `adaptive.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from localsgd.errors import UserError, short
from localsgd.schedule.progress import Progress, Schedule, Sight, checked_length, is_whole

After: TypeAlias = int | Literal["first-decay"]


MAY_BE_NONE = ("epoch", "fraction", "learning_rate", "loss", "seconds")


def length_of(schedule: Schedule, progress: Progress) -> int:
    """The length that the schedule returns, checked."""
    try:
        return checked_length(schedule(progress), of=f" of the schedule {_name_of(schedule)}")
    except TypeError as error:
        unknown = [name for name in MAY_BE_NONE if getattr(progress, name) is None]
        if not unknown or "NoneType" not in str(error):
            raise
        raise UserError(
            f"the schedule {_name_of(schedule)} fails at step {progress.step} ({error}), when "
            f"{', '.join(unknown)} are unknown (None in Progress); return an H without them, as in "
            f"`1 if progress.{unknown[0]} is None else 8`"
        ) from error


def _name_of(schedule: Schedule) -> str:
    return getattr(schedule, "__qualname__", None) or short(schedule)


@dataclass(frozen=True)
class Every:
    """H at all times. Made by `every`."""

    local_steps: int
    sees = ()

    def __call__(self, progress: Progress) -> int:
        return self.local_steps


def every(local_steps: int) -> Every:
    """H = `local_steps` from the start: mini-batch SGD if it is 1, local SGD otherwise.

    Lin et al. 2020, Algorithm 1.
    """
    return Every(checked_length(local_steps))


@dataclass(frozen=True)
class PostLocal:
    """H = 1, then `local_steps`. Made by `post_local`."""

    local_steps: int
    after: After

    @property
    def sees(self) -> tuple[Sight, ...]:
        return ("first-decay",) if self.after == "first-decay" else ()

    def __call__(self, progress: Progress) -> int:
        if self.after == "first-decay":
            return self.local_steps if progress.decayed else 1
        return self.local_steps if progress.step >= self.after else 1


def post_local(local_steps: int, after: After = "first-decay") -> PostLocal:
    """Post-local SGD: H = 1 until `after`, `local_steps` from then on.

    Lin et al. 2020, Algorithm 2 and the equation of H_(t).

    Args:
        local_steps: H of the second phase.
        after: the first step of the second phase, counted from 0, so that the step at exactly
            `after` is local (the paper's text has t <= t' for the first phase; its released code
            and this one have t < t'). `epochs` and `fraction` compute such numbers.
            `"first-decay"`: once the learning rate is below half of its highest value.
    """
    if after != "first-decay" and not is_whole(after, least=0):
        raise UserError(
            f'after = {after!r} is no point of a run; give "first-decay" or a number of steps >= 0 '
            "(localsgd.epochs and localsgd.fraction compute one)"
        )
    after = after if after == "first-decay" else int(after)
    return PostLocal(checked_length(local_steps), after)


WarmupShape: TypeAlias = Literal["linear", "exponential", "constant"]


@dataclass(frozen=True)
class Warmup:
    """H grows from 1. Made by `warmup`."""

    local_steps: int
    period: int
    shape: WarmupShape
    sees = ()

    def __call__(self, progress: Progress) -> int:
        if progress.step >= self.period:
            return self.local_steps
        if self.shape == "linear":
            return 1 + (self.local_steps - 1) * progress.step // self.period
        if self.shape == "exponential":
            exponent = math.log2(self.local_steps) * progress.step / self.period
            return 2 ** math.floor(round(exponent, 9))
        return 1


def warmup(local_steps: int, period: int, shape: WarmupShape = "linear") -> Warmup:
    """Local-step warm-up: H grows from 1 to `local_steps` over `period` steps.

    At step t of a period of T steps, `"linear"` gives 1 + floor((H - 1) t / T), `"exponential"` the
    powers of two 2^floor(log2(H) t / T), `"constant"` 1 for the whole period. From T on all give H.
    The paper (Lin et al. 2020, B.4.2) names the three shapes but not their rounding, which is ours.
    """
    if shape not in ("linear", "exponential", "constant"):
        raise UserError(
            f"warm-up shape {shape!r} is unknown; there are linear, exponential and constant"
        )
    if not is_whole(period, least=0):
        raise UserError(f"period = {period!r} is no number of steps; give a whole number >= 0")
    return Warmup(checked_length(local_steps), int(period), shape)


@dataclass(frozen=True)
class Piecewise:
    """H from a table. Made by `piecewise`."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    sees = ()

    def __call__(self, progress: Progress) -> int:
        return self.lengths[bisect_right(self.starts, progress.step) - 1]


def piecewise(pieces: Mapping[int, int]) -> Piecewise:
    """H from a table of first steps, one of which must be 0: `piecewise({0: 1, 500: 4, 800: 16})`.

    Each H holds from its first step to the next one in the table.
    """
    if 0 not in pieces or not all(is_whole(start, least=0) for start in pieces):
        raise UserError(
            f"piecewise({dict(pieces)}) does not say what H is at step 0, or has keys that are no "
            "steps; give whole numbers >= 0 as keys, 0 among them"
        )
    starts = sorted(pieces)
    return Piecewise(
        tuple(int(start) for start in starts),
        tuple(checked_length(pieces[start]) for start in starts),
    )
