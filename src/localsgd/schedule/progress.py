"""What a schedule sees, and points of a run in steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from localsgd.errors import UserError, short


@dataclass(frozen=True)
class Progress:
    """What a schedule may look at when a round starts. Equal on all workers.

    `None` means unknown: `learning_rate`, `loss` and `seconds` until all workers have sent theirs,
    which takes two rounds; `epoch` and `fraction` throughout a run of `LocalSGD`, which doesn't
    know its length. Return an H without them, as in `1 if progress.loss is None else 8`.

    Args:
        step: local steps that each worker has done.
        epoch: passes over the training set, fractional; `None` if the length of an epoch is
            unknown.
        fraction: the part of the run that is done, in [0, 1]; `None` if the run's length is
            unknown.
        learning_rate: of the inner optimizer's first group, at the next step if the loop knows it.
        decayed: whether the learning rate has fallen below half of its highest value.
        loss: the mean training loss over workers since the last sync, if it is reported.
        waited_seconds: time spent waiting for others, summed over the run.
        seconds: time since the run began, waiting included, if it is measured.
        reported: by name, the means over workers since the last sync of the numbers that
            `LocalSGD.report` is given, or the trainer reports (`gradient_norm`); a name is missing
            until its mean is known.
        memory: what the schedule itself wrote in earlier rounds. It is saved with the run.
    """

    step: int = 0
    epoch: float | None = None
    fraction: float | None = None
    learning_rate: float | None = None
    decayed: bool = False
    loss: float | None = None
    waited_seconds: float = 0.0
    seconds: float | None = None
    reported: Mapping[str, float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)


class Schedule(Protocol):
    """H(t): the length of the next round, 1 or more, from what the run has come to.

    Any function of one `Progress` is a schedule. What it remembers it writes into
    `Progress.memory`, which is saved with the run; it must give the same H on all workers, and so
    use nothing that differs between them. A class that says what it looks at is `Observing`.
    """

    def __call__(self, progress: Progress, /) -> int: ...


Sight: TypeAlias = Literal["learning_rate", "first-decay", "loss", "waited"]
"""What workers tell each other at a sync, by the fields of `Progress` that follow from it:
`learning_rate` and `decayed`; `first-decay`: `decayed` alone; `loss`; `waited`: `waited_seconds`
and `seconds`. `reported:NAME` is a number of the user's own, which stands in `reported`.
"""
REPORTED = "reported:"
BY_DEFAULT: tuple[Sight, ...] = ("learning_rate",)


@runtime_checkable
class Observing(Schedule, Protocol):
    """A schedule that says what it looks at; inherit from it, or have a `sees` of your own.

    Workers tell each other nothing that no schedule looks at. `sees = ()` is a schedule of the step
    alone. A function without `sees` is taken to look at the learning rate, as this base does.

    The names are those of `Sight`, and `reported:NAME` for a number that is reported, such as
    `reported:gradient_norm`.
    """

    @property
    def sees(self) -> tuple[str, ...]:
        return BY_DEFAULT


def seen_by(schedule: Schedule) -> tuple[str, ...]:
    """What a schedule looks at beside the step, checked."""
    if not isinstance(schedule, Observing):
        return BY_DEFAULT
    known, sees = get_args(Sight), schedule.sees
    if not isinstance(sees, tuple) or not all(s in known or reported_name(s) for s in sees):
        raise UserError(
            f"the schedule {short(schedule)} has sees = {short(sees)}; give a tuple of "
            f"{', '.join(known)}, {REPORTED}NAME for a number of your own, or () if it looks at "
            "the step alone"
        )
    return sees


def reported_name(sight: Any) -> str:
    """NAME of `reported:NAME`; empty if it is anything else."""
    if not isinstance(sight, str) or not sight.startswith(REPORTED):
        return ""
    name = sight.removeprefix(REPORTED)
    return name if name.isidentifier() and name != "loss" else ""


def reported_names(schedules: Iterable[Schedule]) -> tuple[str, ...]:
    """The names of the numbers that are to be reported for these schedules, in order."""
    names = {reported_name(sight) for schedule in schedules for sight in seen_by(schedule)}
    return tuple(sorted(names - {""}))


def epochs(number: float, steps_per_epoch: int) -> int:
    """The first step at or after `number` epochs, in local steps from the start."""
    if number < 0 or steps_per_epoch < 1:
        raise UserError(
            f"epochs({number}, steps_per_epoch={steps_per_epoch}) is no point of a run; "
            "give a number >= 0 and steps_per_epoch >= 1"
        )
    return math.ceil(round(number * steps_per_epoch, 9))


def fraction(part: float, steps: int) -> int:
    """The given part of a run of `steps` local steps, in steps, rounded up."""
    if not 0 <= part <= 1 or steps < 1:
        raise UserError(
            f"fraction({part}, steps={steps}) is no point of a run; "
            "give a part in [0, 1] and steps >= 1"
        )
    return math.ceil(round(part * steps, 9))


def is_whole(value: Any, least: int) -> bool:
    """Whether `value` is a whole number >= `least`, of any number type."""
    try:
        return not isinstance(value, bool) and int(value) == value and value >= least
    except (TypeError, ValueError, OverflowError):  # None, "two", nan, inf
        return False


def checked_length(length: int, what: str = "H", of: str = "") -> int:
    """`length` as a plain int; raises if it is below 1, and says what it is and of what."""
    if not is_whole(length, least=1):
        raise UserError(
            f"{what} = {short(length)}{of} is no number of steps; give a whole number >= 1"
        )
    return int(length)
