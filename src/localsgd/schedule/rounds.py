"""The rounds that schedules make: "take h local steps, then average the d innermost levels"."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from localsgd.schedule.fixed import length_of
from localsgd.schedule.progress import Progress, Schedule


class Round(NamedTuple):
    """One turn of the core loop.

    Args:
        local_steps: local steps left before the sync (all of the round's, unless the run was
            resumed).
        depth: number of innermost levels that average then, 1 or more.
        lockstep: number of innermost levels that have averaged after every step since the run
            began. Their members hold equal models and equal inner state, so averaging their
            gradients before the step is the same as averaging their models after it.
    """

    local_steps: int
    depth: int
    lockstep: int


@dataclass
class Position:
    """A run's position in its rounds, which decides when anything is averaged. Saved with the run.

    A round opens, its steps are taken, it closes: the core loop does so step by step, and `rounds`,
    which draws and counts without a worker, round by round.

    Args:
        lengths: of the current round of each level, innermost first, in rounds of the level inside.
        left: the rest of the current rounds; 0 if the next one has not begun. The loop takes 1 from
            `left[0]` at each local step.
        lockstep: as in `Round`.
        depth: of the round at hand, 0 between rounds.
        memories: of the schedules, one for each level.
    """

    lengths: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    lockstep: int = 0
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
                    seen = replace(now, memory=self.memories[level])
                    self.lengths[level] = self.left[level] = length_of(schedule, seen)
        self.depth = 1 + _ones(self.left, first=1)
        self.lockstep = min(self.lockstep, _ones(self.lengths))
        return Round(self.left[0], self.depth, self.lockstep)

    def close(self) -> None:
        """Ends the round at hand: `depth` levels have averaged. Does nothing between rounds."""
        if self.depth == 0:
            return
        self.left[: self.depth] = [0] * self.depth
        if self.depth < len(self.left):
            self.left[self.depth] -= 1
        self.depth = 0

    def abandon(self) -> None:
        """All levels have averaged in the midst of their rounds: new ones are due."""
        self.left = [0] * len(self.left)
        self.depth = 0

    @property
    def beginning(self) -> int:
        """How many of the innermost levels begin a round with the next step."""
        return self._run_of(lambda left, length: left == length)

    @property
    def averaged(self) -> int:
        """How many of the innermost levels have averaged all steps that were taken."""
        return self._run_of(lambda left, length: left in (0, length))

    def _run_of(self, holds: Callable[[int, int], bool]) -> int:
        found = map(holds, self.left, self.lengths)
        return len(list(itertools.takewhile(bool, found)))


def _ones(numbers: Sequence[int], first: int = 0) -> int:
    """The length of the run of ones in `numbers` that begins at `first`."""
    end = first
    while end < len(numbers) and numbers[end] == 1:
        end += 1
    return end - first


def rounds(
    schedules: Sequence[Schedule],
    progress: Callable[[], Progress],
    position: Position | None = None,
) -> Iterator[Round]:
    """Endless rounds of nested levels, without a worker. The caller stops at the end of its budget.

    Args:
        schedules: one for each level, from the innermost outwards.
        progress: called whenever a round of some level starts.
        position: where to continue; it is updated.
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
    """A picture of the first `steps` local steps, such as `'.1.1.2...'`.

    A dot is a local step, and a number says how many levels average after it.

    Args:
        schedules: one for each level, from the innermost outwards.
        steps: the number of local steps to draw.
        progress: what schedules see at a step; the step alone if not given.
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
