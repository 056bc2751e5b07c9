"""Predicts the rounds and syncs of a plan, without workers and tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from localsgd.schedule.progress import Progress
from localsgd.schedule.rounds import Position
from localsgd.schedule.signals import seen_by
from localsgd.train.config.plan import Plan


@dataclass(frozen=True)
class Turn:
    """A round of the innermost level.

    Args:
        step: the step at which it starts.
        local_steps: its local steps, up to the end of the run.
        depth: levels that average after it; 0 if the run ends before.
        lengths: of the current rounds of all levels, innermost first.
        lockstep: levels that have averaged after every step so far.
    """

    step: int
    local_steps: int
    depth: int
    lengths: tuple[int, ...]
    lockstep: int

    @property
    def end(self) -> int:
        return self.step + self.local_steps


@dataclass(frozen=True)
class Phase:
    """Turns in a row for which the lengths of rounds stay the same."""

    turns: tuple[Turn, ...]

    @property
    def first(self) -> int:
        return self.turns[0].step

    @property
    def end(self) -> int:
        """The step after its last one."""
        return self.turns[-1].end

    @property
    def lengths(self) -> tuple[int, ...]:
        return self.turns[0].lengths


def progress_at(plan: Plan, step: int) -> Progress:
    """The progress that schedules see at `step`, as far as it is known before the run."""
    rate = plan.learning_rate
    return Progress(
        step=step,
        epoch=step / plan.steps_per_epoch,
        fraction=step / plan.steps,
        learning_rate=rate(step),
        decayed=rate.decayed(step),
    )


def foreseen(plan: Plan) -> bool:
    """Whether all rounds are known before the run: no schedule looks at its loss or its time."""
    return all({*seen_by(schedule)} <= {"learning_rate"} for schedule in plan.schedules)


def turns(plan: Plan) -> Iterator[Turn]:
    """All rounds of the innermost level until the budget ends."""
    schedules, position = plan.schedules, Position.start(plan.topology.levels)
    step = 0
    while step < plan.steps:
        local_steps, depth, shared = position.open(schedules, partial(progress_at, plan, step))
        left = plan.steps - step
        cut = local_steps > left
        taken, depth = min(local_steps, left), 0 if cut else depth
        yield Turn(step, taken, depth, tuple(position.lengths), shared)
        position.close()
        step += local_steps


def phases(plan: Plan) -> list[Phase]:
    """The turns of a run, put together if the lengths of rounds do not change."""
    found: list[list[Turn]] = []
    for turn in turns(plan):
        if not found or found[-1][0].lengths != turn.lengths:
            found.append([])
        found[-1].append(turn)
    return [Phase(tuple(phase)) for phase in found]


@dataclass(frozen=True)
class Counts:
    """The number of syncs of each level, innermost first.

    Args:
        by_level: syncs after rounds.
        settled: whether each level synchronises once more at the end of the run, because its last
            round left it out.
        on_gradients: syncs of the outermost level that may average gradients, since all levels have
            averaged after every step so far.
    """

    by_level: tuple[int, ...]
    settled: tuple[bool, ...]
    on_gradients: int

    @property
    def whole(self) -> int:
        """Rounds of the outermost level that end."""
        return self.by_level[-1]


def counts(plan: Plan) -> Counts:
    """The number of syncs in the whole run."""
    found, levels = list(turns(plan)), plan.topology.levels
    last = found[-1].depth if found else 0
    if not plan.delay.none or plan.gossips:
        last = min(last, levels - 1)  # it settles what is late, and whose members differ
    return Counts(
        tuple(sum(turn.depth > level for turn in found) for level in range(levels)),
        tuple(level >= last for level in range(levels)),
        sum(turn.lockstep == turn.depth == levels for turn in found),
    )


def syncs(plan: Plan, until: int | None = None) -> list[int]:
    """The number of syncs of each level, innermost first, up to step `until` if it is given.

    A run ends with a sync of the levels that its last round has left out.
    """
    if until is None:
        found = counts(plan)
        return [n + last for n, last in zip(found.by_level, found.settled, strict=True)]
    by_level = [0] * plan.topology.levels
    for turn in turns(plan):
        if turn.end > until:
            break
        for level in range(turn.depth):
            by_level[level] += 1
    return by_level


def sync_steps(plan: Plan, level: int) -> list[int]:
    """The steps after which `level` synchronises, the run's last sync among them."""
    found = [turn.end for turn in turns(plan) if turn.depth > level]
    return found if found and found[-1] == plan.steps else [*found, plan.steps]
