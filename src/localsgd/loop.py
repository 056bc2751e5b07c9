"""The core loop, and the only one: take local steps, let levels average, share the result.

    for local_steps, depth in rounds(schedules):
        repeat local_steps times:  w_k <- w_k - γ g_k            on every worker k
        for the d innermost levels, from inside:  anchor <- outer(anchor, mean_k C(anchor - w_k))
        for the same, from outside:               w_k <- anchor

Local SGD, post-local SGD and hierarchical local SGD (Lin et al. 2020, Algorithms 1, 2 and 5) are
this loop with other schedules and levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from localsgd.averaging.level import Averaging, average_and_share, final_sync
from localsgd.averaging.overlap import expect
from localsgd.schedule.progress import Progress, Schedule
from localsgd.schedule.rounds import Position


class Steps(Protocol):
    """What the loop asks of the workers hosted here."""

    @property
    def step(self) -> int:
        """Local steps done."""
        ...

    def backward(self) -> None: ...

    def apply(self, learning_rate: float) -> None: ...


def train(
    workers: Steps,
    levels: Sequence[Averaging],
    schedules: Sequence[Schedule],
    learning_rate: Callable[[int], float],
    *,
    steps: int,
    position: Position,
    progress: Callable[[], Progress] | None = None,
    gradients: Sequence[Averaging] = (),
    synced: Callable[[int, int], None] = lambda depth, lockstep: None,
    after_step: Callable[[], None] = lambda: None,
) -> None:
    """Trains until `workers.step` is `steps`, ending with a sync of all levels.

    Does nothing where that many steps are done already.

    Args:
        workers: take the local steps.
        levels: over the workers' parameters, innermost first.
        schedules: of the levels.
        learning_rate: γ at each step.
        steps: the budget of each worker; a round that it cuts short ends with a sync all the
            same.
        position: where in its rounds the run is; moved along, so that it can be saved after any
            step.
        progress: what schedules see; the step alone where not given.
        gradients: the same levels over the workers' gradients. Where they are given, levels that
            have averaged after every step so far average gradients before the step instead of
            models after it.
        synced: called after every sync that ends a round, with the number of levels that have
            averaged, and how many of them on gradients.
        after_step: called after every step, once it has been averaged where that was due.
    """
    if workers.step >= steps:
        return
    progress = progress or (lambda: Progress(step=workers.step))
    settled = 0
    while workers.step < steps:
        local_steps, depth, lockstep = position.open(schedules, progress)
        lockstep = lockstep if gradients else 0
        _begin_rounds(levels, position, learning_rate(workers.step))
        for _ in range(min(local_steps, steps - workers.step)):
            expect(gradients[:lockstep])
            workers.backward()
            average_and_share(gradients[:lockstep])
            workers.apply(learning_rate(workers.step))
            position.left[0] -= 1
            if position.left[0] and workers.step < steps:
                after_step()
        settled = 0
        if position.left[0] == 0:
            average_and_share(levels[:depth], first=lockstep)
            synced(depth, lockstep)
            position.close()
            settled = depth
        if workers.step < steps:
            after_step()
    final_sync(levels, first=settled)
    after_step()


def _begin_rounds(levels: Sequence[Averaging], position: Position, learning_rate: float) -> None:
    """Tells the levels whose rounds begin at this very step: all inside them begin one too."""
    for level, left, length in zip(levels, position.left, position.lengths, strict=True):
        if left != length:
            break
        level.begin_round(learning_rate)
