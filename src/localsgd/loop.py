"""The core loop, and the only one: take local steps, let levels average, share the result.

    for local_steps, depth in rounds(schedules):
        repeat local_steps times:  w_k <- w_k - γ g_k            on every worker k
        for the d innermost levels, from inside:  anchor <- outer(anchor, mean_k C(anchor - w_k))
        for the same, from outside:               w_k <- anchor

Local SGD, post-local SGD and hierarchical local SGD (Lin et al. 2020, Algorithms 1, 2 and 5) are
this loop with other schedules and levels. `Loop` has it as the events of a step, as a user's own
loop brings them about; `train` is the trainer's loop, whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from localsgd.averaging.inner_state import InnerStates
from localsgd.averaging.level import Averaging
from localsgd.averaging.stacks import GradientLevels, Gradients, Stacks
from localsgd.schedule.progress import Progress, Schedule
from localsgd.schedule.rounds import Position

GradientsT = TypeVar("GradientsT", bound=Gradients)


def _nothing() -> None:
    pass


@dataclass
class Loop(Generic[GradientsT]):
    """The events of a step. Whoever takes the steps calls them in this order:

        open()                    H, d <- schedules(progress)             unless a round is open
        begin()                   γ is told to the levels whose rounds begin with this step
        gradients.average()       g_k <- mean_j g_j                       at levels in lockstep
          (the workers step)      w_k <- w_k - γ g_k
        stepped()                 d, if this step was the last of its round, else 0
        sync()                    anchor <- outer(anchor, mean_k C(anchor - w_k)); w_k <- anchor
        finish()                  the same for all that is not averaged yet, at the end

    Levels are in lockstep if they have averaged after every step so far: their members hold equal
    models and equal inner states, so that they average gradients before the step in place of models
    after it.

    Args:
        schedules: of the levels, innermost first.
        models: the levels over the workers' models.
        gradients: averages gradients.
        position: where in its rounds the run is; moved along, so that it can be saved after any
            step.
        progress: what schedules see after so many steps.
        learning_rate: γ of the step after so many.
        exchange: called whenever the outermost level averages: workers tell each other what
            schedules will see.
        inner_states: what becomes of the inner optimizers' states at outermost syncs on models.
        steps: that each worker has taken.
        syncs: how often each level has averaged, on models or on gradients, innermost first.
    """

    schedules: Sequence[Schedule]
    models: Stacks[Any]
    gradients: GradientsT
    position: Position
    progress: Callable[[int], Progress]
    learning_rate: Callable[[int], float]
    exchange: Callable[[], None] = _nothing
    inner_states: InnerStates | None = None
    steps: int = 0
    syncs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.syncs = self.syncs or [0] * len(self.schedules)

    def open(self) -> None:
        """The rounds that are due open: their schedules are asked. Harmless if none is due."""
        opened = self.position.open(self.schedules, lambda: self.progress(self.steps))
        self.gradients.set_lockstep(opened.lockstep)

    def begin(self) -> None:
        """Before a step: γ is told to the levels whose rounds begin with it."""
        if not self.models.needs_learning_rate:
            return
        for level in range(self.position.beginning):
            self.models.begin_round(level, self.learning_rate(self.steps))

    def stepped(self) -> int:
        """The workers have stepped. Returns how many of the innermost levels average now."""
        self.steps += 1
        self.position.left[0] -= 1
        return self.position.depth if self.position.left[0] == 0 else 0

    def sync(self, meanwhile: Callable[[], None] = _nothing) -> None:
        """The levels that are due average, on models unless their gradients were averaged.

        The round closes while models are on the wire: workers tell what schedules will see, then
        `meanwhile` is called, which may `open` the next.
        """
        depth, lockstep = self.position.depth, self.gradients.lockstep
        outermost = depth == len(self.schedules)
        failures: list[Exception] = []

        def close() -> None:
            self.position.close()
            try:
                if outermost:
                    self.exchange()
                meanwhile()
            except Exception as failure:  # Models arrive first, so that all hold their mean.
                failures.append(failure)

        self.models.average(depth, first=lockstep, meanwhile=close)
        self._count(range(depth))
        if outermost and lockstep < depth and self.inner_states is not None:
            self.inner_states.follow()
        if failures:
            raise failures[0]

    @property
    def all_averaged(self) -> bool:
        """Whether all workers hold the same model, as far as is known here."""
        return self.position.averaged == len(self.schedules) and not self.models.may_differ

    def finish(self, differ: bool = False) -> bool:
        """The last sync: of all levels that have steps to average, or may differ.

        Args:
            differ: models are known to differ although they should not.

        Returns:
            Whether there was anything to average. If so, a run that goes on opens new rounds.
        """
        if self.all_averaged and not differ:
            return False
        first = 0 if differ else self.position.averaged
        self.models.final_average(first)
        self._count(range(first, len(self.syncs)))
        self.position.abandon()
        return True

    def _count(self, levels: Iterable[int]) -> None:
        for level in levels:
            self.syncs[level] += 1

    def state(self) -> dict[str, Any]:
        """Where it is, without models and their levels."""
        states = self.inner_states
        return {
            "steps": self.steps,
            "syncs": list(self.syncs),
            "position": asdict(self.position),
            "lockstep": min(self.position.lockstep, self.gradients.exact),
            "model_syncs": 0 if states is None else states.syncs,
            "inner_state_keys": [] if states is None else states.state(),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self.steps = state["steps"]
        self.syncs = list(state.get("syncs", [0] * len(self.syncs)))  # older ones lack it
        self.position = Position(**copy.deepcopy(state["position"]))
        # If models were averaged, each worker has an inner state of its own.
        self.position.lockstep = min(self.position.lockstep, state["lockstep"])
        self.gradients.set_lockstep(self.position.lockstep)
        if self.inner_states is not None:
            self.inner_states.syncs = state["model_syncs"]
            self.inner_states.load(state.get("inner_state_keys", ()))


class Steps(Protocol):
    """What the trainer's loop asks of the workers hosted here."""

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
    progress: Callable[[int], Progress] = Progress,
    gradients: Sequence[Averaging] = (),
    exchange: Callable[[], None] = _nothing,
    inner_states: InnerStates | None = None,
    after_step: Callable[[], None] = _nothing,
) -> None:
    """Trains until `workers.step` is `steps`, ending with a sync of all levels.

    Does nothing if that many steps are done already.

    Args:
        workers: take the local steps.
        levels: over the workers' parameters, innermost first.
        schedules: of the levels.
        learning_rate: γ at each step.
        steps: the budget of each worker; a round that it cuts short ends with a sync all the
            same.
        position, exchange, inner_states: as in `Loop`.
        progress: what schedules see at each step; the step alone if not given.
        gradients: the same levels over the workers' gradients, for levels in lockstep.
        after_step: called after every step, once it has been averaged if that was due.
    """
    loop = Loop(
        schedules,
        Stacks([levels]),
        GradientLevels(gradients),
        position,
        progress,
        learning_rate,
        exchange,
        inner_states,
        workers.step,
    )
    if loop.steps >= steps:
        return
    while loop.steps < steps:
        loop.open()
        loop.begin()
        loop.gradients.expect()
        workers.backward()
        loop.gradients.average()
        workers.apply(learning_rate(loop.steps))
        if loop.stepped():
            loop.sync()
        if loop.steps < steps:
            after_step()
    loop.finish()
    after_step()
