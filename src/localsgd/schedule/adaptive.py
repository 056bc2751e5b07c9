"""Schedules that choose H from the learning rate, the loss, or the time spent waiting.

Like those in `fixed.py` they are values: what they need to remember they write into
`Progress.memory`, which is theirs alone and is saved with the run.

    >>> rule = qsr(4, 0.2)
    >>> rule(Progress(1000, learning_rate=0.02)), rule(Progress(1000, learning_rate=0.2))
    (100, 4)
    >>> decreasing(16, period=100)(Progress(step=250))
    4
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.schedule.progress import Progress, checked_length, is_whole

LONGEST = 0.25
"""Default length of the quadratic rule's longest round, as a fraction of the run."""


@dataclass(frozen=True)
class Qsr:
    """H grows as the learning rate falls. Made by `qsr`."""

    base: int
    alpha: float
    warmup: int
    longest: int | None = None
    sees = ("learning_rate",)

    def __call__(self, progress: Progress) -> int:
        rate = progress.learning_rate
        if rate is None or progress.step < self.warmup:
            return self.base
        if rate <= 0:
            raise UserError(
                f"the quadratic rule divides by the learning rate, which is {rate:g} at step "
                f"{progress.step}; let it end above 0"
            )
        steps = progress.step / progress.fraction if progress.fraction else None
        wanted = min(self.alpha / rate, 1e9) ** 2
        longest = self.longest or math.ceil(round(LONGEST * (steps or progress.step), 9))
        length = max(self.base, min(longest, math.floor(round(wanted, 9))))
        if steps is not None and not progress.memory.get("said"):
            left = round(steps) - progress.step
            if length > left > LONGEST * steps and length > self.base:
                progress.memory["said"] = 1
                warnings.warn(
                    f"the quadratic rule makes H = {length} at step {progress.step}, and {left} "
                    "steps of the run are left, so there is no sync before its end; give a smaller "
                    "longest",
                    stacklevel=2,
                )
        return length


def qsr(base: int, alpha: float, warmup: int = 0, longest: int | None = None) -> Qsr:
    """H = max(`base`, floor((α/γ)²)), γ at the start of the round (Gu et al. 2024, Eq. 2).

    Args:
        base: the least H.
        alpha: α, in units of the learning rate: H exceeds `base` once γ < α / sqrt(base).
        warmup: steps of a learning-rate warm-up, in which H is `base`, since γ is small there for
            another reason.
        longest: the largest H. If not given, a quarter of the run's steps, or of the steps so far
            if the run's length is unknown, so that a rate that is small only for a while, as in a
            warm-up, does not make H huge.
    """
    if not (math.isfinite(alpha) and alpha > 0):
        raise UserError(f"alpha = {alpha!r} gives no H; give a number > 0")
    least = checked_length(base, "H_base")
    most = None if longest is None else checked_length(longest, "longest")
    if most is not None and most < least:
        raise UserError(f"longest = {most} is below H_base = {least}; give at least as many steps")
    return Qsr(least, float(alpha), _period(warmup, least=0), most)


@dataclass(frozen=True)
class AdaComm:
    """H falls with the loss. Made by `adacomm`."""

    start: int
    period: int
    shrink: float
    with_rate: bool
    sees = ("learning_rate", "loss")

    def __call__(self, progress: Progress) -> int:
        memory, loss, rate = progress.memory, progress.loss, progress.learning_rate
        if loss is None or not math.isfinite(loss):
            return int(memory.get("length", self.start))
        memory.setdefault("first_loss", loss)
        memory["first_rate"] = memory.get("first_rate") or rate or 0.0  # γ_0 is above 0
        length = memory.setdefault("length", self.start)
        period = progress.step // self.period
        if period > memory.setdefault("period", period):
            memory["period"] = period
            ratio = max(loss, 0.0) / memory["first_loss"] if memory["first_loss"] > 0 else 1.0
            if self.with_rate and rate and memory["first_rate"]:
                ratio *= memory["first_rate"] / rate
            wanted = math.ceil(round(self.start * math.sqrt(ratio), 9))
            if not self.with_rate and wanted >= length:
                wanted = min(int(length) - 1, math.ceil(self.shrink * length))
            memory["length"] = max(1, wanted)
        return int(memory["length"])


def adacomm(start: int, period: int, shrink: float = 0.5, with_rate: bool = False) -> AdaComm:
    """AdaComm: H = ceil(H_0 sqrt(F/F_0)) at every multiple of `period` steps.

    F is the mean training loss over workers since the last sync, F_0 the first one. If the formula
    does not lower H, it is multiplied by `shrink`, their refinement (Wang and Joshi 2019, Eqs. 17
    to 19).

    Args:
        start: H_0.
        period: steps between changes. The paper's is in seconds; with steps a resumed run has the
            same H.
        with_rate: H = ceil(H_0 sqrt(γ_0/γ F/F_0)), which grows if the learning rate falls, and is
            not refined.
    """
    if not 0 < shrink < 1:
        raise UserError(f"shrink = {shrink!r} does not lower H; give a number in (0, 1)")
    return AdaComm(checked_length(start, "H_0"), _period(period), float(shrink), bool(with_rate))


@dataclass(frozen=True)
class Decreasing:
    """H falls with the step. Made by `decreasing`."""

    start: int
    period: int
    factor: float
    sees = ()

    def __call__(self, progress: Progress) -> int:
        length = self.start * self.factor ** (progress.step // self.period)
        return max(1, math.ceil(round(length, 9)))


def decreasing(start: int, period: int, factor: float = 0.5) -> Decreasing:
    """H = max(1, ceil(`start` · `factor`^(t // `period`))).

    It is AdaComm's sequence if the loss doesn't lower H (Wang and Joshi 2019, Section 4).
    """
    if not 0 < factor < 1:
        raise UserError(f"factor = {factor!r} does not lower H; give a number in (0, 1)")
    return Decreasing(checked_length(start, "H_0"), _period(period), float(factor))


@dataclass(frozen=True)
class Plateau:
    """H = 1 until the loss stops falling, then H. Made by `plateau`."""

    local_steps: int
    window: int
    patience: int
    threshold: float
    sees = ("loss",)

    def __call__(self, progress: Progress) -> int:
        memory = progress.memory
        if memory.get("switched"):
            return self.local_steps
        if progress.loss is None:
            return 1
        memory["sum"] = memory.get("sum", 0.0) + progress.loss
        memory["count"] = memory.get("count", 0) + 1
        if progress.step < memory.setdefault("until", progress.step + self.window):
            return 1
        mean = memory["sum"] / memory["count"]
        memory.update(sum=0.0, count=0, until=progress.step + self.window)
        best = memory.get("best", math.inf)
        if best == math.inf or mean < best - self.threshold * abs(best):
            memory.update(best=mean, stayed=0)
        else:
            memory["stayed"] = memory.get("stayed", 0) + 1
        memory["switched"] = int(memory["stayed"] >= self.patience)
        return self.local_steps if memory["switched"] else 1


def plateau(local_steps: int, window: int, patience: int = 2, threshold: float = 0.01) -> Plateau:
    """Post-local SGD that leaves H = 1 when the training loss reaches a plateau.

    H is 1 until the loss, averaged over `window` steps, has not fallen below its best by the
    fraction `threshold` for `patience` windows in a row; from then on it is `local_steps`.
    """
    if not 0 <= threshold < 1:
        raise UserError(f"threshold = {threshold!r} is no fraction of a loss; give one in [0, 1)")
    length = checked_length(local_steps)
    return Plateau(length, _period(window), _period(patience), float(threshold))


@dataclass(frozen=True)
class WaitingBelow:
    """The smallest H that keeps waiting under a fraction of the time. Made by `waiting_below`."""

    budget: float
    longest: int
    sees = ("waited",)

    def __call__(self, progress: Progress) -> int:
        memory = progress.memory
        length = int(memory.setdefault("length", 1))
        seconds, waited = progress.seconds, progress.waited_seconds
        if seconds is None or seconds == memory.get("seconds"):
            return length  # nothing new
        if "since" in memory:
            # These numbers were sent when the last ones were seen, so they are of the time before.
            steps = memory["step"] - memory["since"]
            waiting = waited - memory["waited"]
            wait = max(0.0, waiting) * memory["earlier"] / steps  # of a sync
            work = max(1e-9, seconds - memory["seconds"] - waiting) / steps
            wanted = math.ceil(wait * (1 - self.budget) / (self.budget * work))
            # One odd round must not decide: H at most doubles, or falls by a quarter.
            wanted = min(max(wanted, math.floor(0.75 * length)), 2 * length)
            memory["length"] = min(max(1, wanted), self.longest)
        if "step" in memory:
            memory["since"] = memory["step"]
        memory.update(step=progress.step, seconds=seconds, waited=waited, earlier=length)
        return int(memory["length"])


def waiting_below(budget: float, longest: int = 1024) -> WaitingBelow:
    """A budget for communication: the smallest H with a/(a + H c) <= `budget`.

    a is the time that a worker waits at a sync, c that of a local step. Both are means over workers
    in the last round whose times have been exchanged, which ended one sync ago, so that all choose
    the same H. H at most doubles from one sync to the next, and stays within [1, `longest`]. Times
    differ from run to run, and so does H: such a run can be resumed, but not to the same bits.
    """
    if not 0 < budget < 1:
        raise UserError(f"budget = {budget!r} is no fraction of the time; give one in (0, 1)")
    return WaitingBelow(float(budget), checked_length(longest, "longest"))


@dataclass(frozen=True)
class Cyclic:
    """H = 1, then H, in every cycle. Made by `cyclic`."""

    local_steps: int
    period: int
    first: int
    sees = ()

    def __call__(self, progress: Progress) -> int:
        if progress.step % self.period < self.first:
            return 1
        return min(self.local_steps, self.period - progress.step % self.period)


def cyclic(local_steps: int, period: int, first: int) -> Cyclic:
    """Post-local SGD in every cycle of a learning rate with warm restarts.

    H = 1 for the `first` steps of each `period`, `local_steps` for the rest; a cycle ends with a
    sync. It is for one level: an outer level counts rounds, which need not end with a cycle.
    """
    length = _period(period)
    if not is_whole(first, least=0) or first > length:
        raise UserError(f"first = {first!r} is no part of a cycle of {plural(length, 'step')}")
    return Cyclic(checked_length(local_steps), length, int(first))


def _period(steps: int, least: int = 1) -> int:
    if not is_whole(steps, least=least):
        raise UserError(f"{steps!r} is no valid number of steps; give a whole number >= {least}")
    return int(steps)
