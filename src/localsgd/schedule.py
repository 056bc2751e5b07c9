"""When to agree: schedules of H, and the rounds that they make.

A schedule is a function of `Progress` that returns the length of the next round of one level: H
local steps for the innermost level, H^b rounds of the level inside for any other. `rounds` turns
one schedule for each level into the sequence "take h local steps, then let the d innermost levels
agree", and nothing else in the package decides when anything is averaged.

    >>> picture([every(2), every(2)], steps=8)
    '..1..2..1..2'
    >>> picture([post_local(3, after=2)], steps=8)
    '.1.1...1...1'

Schedules are frozen values: they compare, print and can be kept in a configuration. A new one is a
callable of the same shape; everything that it remembers it writes into `Progress.memory`, so that a
resumed run goes on as if undisturbed. One that looks at the step alone says so with `step_only =
True`: it can be drawn, and needs nothing from the other workers. Schedules that judge by the run
itself are in `adaptive.py`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

from localsgd.errors import UserError


@dataclass(frozen=True)
class Progress:
    """What a schedule may look at when a round starts. Equal on all workers.

    What is `None` is not known: `learning_rate`, `loss` and `seconds` until all have told theirs,
    which takes two rounds; `epoch` and `share` for a whole run of `LocalSGD`, which has no stated
    end. Return an H without them, as in `1 if progress.loss is None else 8`.

    Args:
        step: local steps that each worker has done.
        epoch: passes over the training set, fractional; `None` where nobody said how long an epoch
            is.
        share: the part of the run that is done, in [0, 1]; `None` where the run has no stated end.
        learning_rate: of the inner optimizer's first group, at the next step where the loop knows
            it.
        decayed: whether the learning rate has fallen below half of its highest value.
        loss: the mean training loss over workers since the last agreement, where it is reported.
        waited_seconds: time spent waiting for others, summed over the run.
        seconds: since the run began, waiting included, where it is measured.
        memory: what the schedule itself wrote at earlier rounds. It is saved with the run.
    """

    step: int = 0
    epoch: float | None = None
    share: float | None = None
    learning_rate: float | None = None
    decayed: bool = False
    loss: float | None = None
    waited_seconds: float = 0.0
    seconds: float | None = None
    memory: dict[str, float] = field(default_factory=dict)


Schedule: TypeAlias = Callable[[Progress], int]
After: TypeAlias = int | Literal["first_decay"]


def epochs(number: float, steps_per_epoch: int) -> int:
    """The first step that lies at or after `number` epochs, in local steps from the start."""
    if number < 0 or steps_per_epoch < 1:
        raise UserError(
            f"epochs({number}, steps_per_epoch={steps_per_epoch}) is no point of a run; "
            "give a number >= 0 and steps_per_epoch >= 1"
        )
    return math.ceil(round(number * steps_per_epoch, 9))


def share(part: float, steps: int) -> int:
    """The given part of a run of `steps` local steps, in steps, rounded up."""
    if not 0 <= part <= 1 or steps < 1:
        raise UserError(
            f"share({part}, steps={steps}) is no point of a run; "
            "give a part in [0, 1] and steps >= 1"
        )
    return math.ceil(round(part * steps, 9))


def _is_whole(value: Any, least: int) -> bool:
    """Whether `value` is a whole number from `least` up, of whatever type of number."""
    try:
        return not isinstance(value, bool) and int(value) == value and value >= least
    except (TypeError, ValueError, OverflowError):  # None, "two", nan, inf
        return False


def checked_length(length: int, what: str = "H") -> int:
    """`length` as a plain int, refused below 1."""
    if not _is_whole(length, least=1):
        raise UserError(f"{what} = {length!r} is no number of steps; give a whole number >= 1")
    return int(length)


MAY_BE_NONE = ("epoch", "share", "learning_rate", "loss", "seconds")


def length_of(schedule: Schedule, progress: Progress) -> int:
    """What the schedule says, checked."""
    try:
        return checked_length(schedule(progress))
    except TypeError as error:
        unknown = [name for name in MAY_BE_NONE if getattr(progress, name) is None]
        if not unknown or "NoneType" not in str(error):
            raise
        name = getattr(schedule, "__name__", None) or repr(schedule)
        raise UserError(
            f"the schedule {name} fails at step {progress.step} ({error}), where nobody knows "
            f"{', '.join(unknown)} (None in Progress); return an H without them, as in "
            f"`1 if progress.{unknown[0]} is None else 8`"
        ) from error


@dataclass(frozen=True)
class Every:
    """H at all times. Made by `every`."""

    local_steps: int
    step_only = True

    def __call__(self, progress: Progress) -> int:
        return self.local_steps


def every(local_steps: int) -> Every:
    """H = `local_steps` from the start: mini-batch SGD for 1, local SGD otherwise (Lin et al. 2020,
    Algorithm 1).
    """
    return Every(checked_length(local_steps))


@dataclass(frozen=True)
class PostLocal:
    """H = 1, then `local_steps`. Made by `post_local`."""

    local_steps: int
    after: After

    @property
    def step_only(self) -> bool:
        return self.after != "first_decay"

    def __call__(self, progress: Progress) -> int:
        if self.after == "first_decay":
            return self.local_steps if progress.decayed else 1
        return self.local_steps if progress.step >= self.after else 1


def post_local(local_steps: int, after: After = "first_decay") -> PostLocal:
    """Post-local SGD: H = 1 until `after`, `local_steps` from then on (Lin et al. 2020, Algorithm 2
    and Eq. of H_(t)).

    Args:
        local_steps: H of the second phase.
        after: the first step of the second phase, counted from 0, so that the step at exactly
            `after` is local (the paper's text has t <= t' for the first phase; its released code,
            and we, have t < t'). `epochs` and `share` make such numbers. `"first_decay"`: once the
            learning rate is below half of its highest value.
    """
    if after != "first_decay" and not _is_whole(after, least=0):
        raise UserError(
            f'after = {after!r} is no point of a run; give "first_decay" or a number of steps >= 0 '
            "(localsgd.epochs and localsgd.share make one)"
        )
    after = after if after == "first_decay" else int(after)
    return PostLocal(checked_length(local_steps), after)


WarmupShape: TypeAlias = Literal["linear", "exponential", "constant"]


@dataclass(frozen=True)
class Warmup:
    """H grows from 1. Made by `warmup`."""

    local_steps: int
    period: int
    shape: WarmupShape
    step_only = True

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
    """Local-step warm-up: H grows from 1 to `local_steps` over `period` steps (Lin et al. 2020,
    B.4.2).

    At step t of a period of T steps, `"linear"` gives 1 + floor((H - 1) t / T), `"exponential"` the
    powers of two 2^floor(log2(H) t / T), `"constant"` 1 for the whole period. From T on all give H.
    The paper names the three shapes and not their rounding; this is ours.
    """
    if shape not in ("linear", "exponential", "constant"):
        raise UserError(
            f"warm-up shape {shape!r} is unknown; there are linear, exponential and constant"
        )
    if not _is_whole(period, least=0):
        raise UserError(f"a warm-up over {period!r} steps cannot be; give a whole number >= 0")
    return Warmup(checked_length(local_steps), int(period), shape)


@dataclass(frozen=True)
class Piecewise:
    """H by stretches of steps. Made by `piecewise`."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    step_only = True

    def __call__(self, progress: Progress) -> int:
        return self.lengths[bisect_right(self.starts, progress.step) - 1]


def piecewise(pieces: Mapping[int, int]) -> Piecewise:
    """H from a table by the first step of each stretch, of which one must be 0, as in
    `piecewise({0: 1, 500: 4, 800: 16})`.
    """
    if 0 not in pieces or not all(_is_whole(start, least=0) for start in pieces):
        raise UserError(
            f"piecewise({dict(pieces)}) does not say what H is at step 0 and from which steps on "
            "it changes; give whole numbers >= 0 as keys, 0 among them"
        )
    starts = sorted(pieces)
    return Piecewise(
        tuple(int(start) for start in starts),
        tuple(checked_length(pieces[start]) for start in starts),
    )


class Round(NamedTuple):
    """One turn of the core loop.

    Args:
        local_steps: local steps that are left before the agreement (all of the round's, unless a
            run was resumed).
        depth: how many of the innermost levels agree then, 1 or more.
        shared: how many of the innermost levels have agreed after every single step since the run
            began. Their members hold equal models and equal inner state, so that averaging their
            gradients before the step does what averaging their models after it would.
    """

    local_steps: int
    depth: int
    shared: int


@dataclass
class Position:
    """Where in its rounds a run is: all that `rounds` remembers, saved with a run.

    Args:
        lengths: of the current round of each level, innermost first, in rounds of the level inside.
        left: how much of it is to come; 0 where the next round has not begun. The loop takes 1 from
            `left[0]` at each local step.
        shared: as in `Round`.
        depth: of the round at hand, 0 between rounds.
        memories: of the schedules, one for each level.
    """

    lengths: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    shared: int = 0
    depth: int = 0
    memories: list[dict[str, float]] = field(default_factory=list)

    @staticmethod
    def start(levels: int) -> Position:
        return Position([0] * levels, [0] * levels, levels, memories=[{} for _ in range(levels)])

    def open(self, schedules: Sequence[Schedule], progress: Callable[[], Progress]) -> Round:
        """Begins the rounds that are due, and says what comes next."""
        if 0 in self.left:
            now = progress()
            for level, schedule in enumerate(schedules):
                if self.left[level] == 0:
                    seen = now
                    if not getattr(schedule, "step_only", False):
                        seen = replace(now, memory=self.memories[level])
                    self.lengths[level] = self.left[level] = length_of(schedule, seen)
        self.depth = 1 + _ones(self.left, first=1)
        self.shared = min(self.shared, _ones(self.lengths))
        return Round(self.left[0], self.depth, self.shared)

    def close(self) -> None:
        """Ends the round at hand: `depth` levels have agreed. Does nothing between rounds."""
        if self.depth == 0:
            return
        self.left[: self.depth] = [0] * self.depth
        if self.depth < len(self.left):
            self.left[self.depth] -= 1
        self.depth = 0


def _ones(numbers: Sequence[int], first: int = 0) -> int:
    """How many are 1, from `first` on, before the first that is not."""
    end = first
    while end < len(numbers) and numbers[end] == 1:
        end += 1
    return end - first


def rounds(
    schedules: Sequence[Schedule],
    progress: Callable[[], Progress],
    position: Position | None = None,
) -> Iterator[Round]:
    """Endless rounds of nested levels. The caller stops when its budget is spent.

    Args:
        schedules: one for each level, from the innermost outwards.
        progress: asked whenever a round of some level starts.
        position: where to go on; kept up to date.
    """
    position = position or Position.start(len(schedules))
    while True:
        yield position.open(schedules, progress)
        position.close()


def picture(
    schedules: Sequence[Schedule],
    steps: int,
    progress: Callable[[int], Progress] | None = None,
) -> str:
    """The first `steps` local steps drawn: a dot for each, then how many levels agree, as in
    `'.1.1.2...'`.

    Args:
        schedules: one for each level, from the innermost outwards.
        steps: how many are drawn.
        progress: what schedules see at a step; the step alone where not given.
    """
    drawn: list[tuple[int, str]] = []
    at = progress or (lambda step: Progress(step=step))
    done = 0

    def now() -> Progress:
        return at(done)

    for local_steps, depth, _ in rounds(schedules, now):
        if done + local_steps > steps:
            drawn.append((steps - done, ""))
        else:
            drawn.append((local_steps, str(depth)))
        done += local_steps
        if done >= steps:
            break
    return "".join("." * local + mark for local, mark in drawn)
