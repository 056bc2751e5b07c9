"""What the core loop averages: models, as stacks of levels, and gradients before a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from localsgd.averaging.level import Averaging, average_and_share, final_sync
from localsgd.averaging.overlap import Overlapped

LevelT = TypeVar("LevelT", bound=Averaging)


class Stacks(Generic[LevelT]):
    """A stack of levels for each row of the workers hosted here; all are averaged together.

    Workers have a row for each dtype and device of their models, so there is usually one stack.

    Args:
        stacks: the levels over each row, innermost first.
        needs_learning_rate: whether any level goes by the γ of its round.
    """

    def __init__(
        self, stacks: Sequence[Sequence[LevelT]], needs_learning_rate: bool = True
    ) -> None:
        self._stacks = stacks
        self.needs_learning_rate = needs_learning_rate

    def average(self, depth: int, first: int, meanwhile: Callable[[], None]) -> None:
        """Levels `first` to `depth` synchronise; the members of those inside hold equal models.

        `meanwhile` is called once, while the first of the rows is on its way. What it raises is
        raised when all rows have been averaged, as they hold sums and updates until then.
        """
        failed: list[Exception] = []

        def look() -> None:
            try:
                meanwhile()
            except Exception as error:
                failed.append(error)

        with torch.no_grad():
            for index, levels in enumerate(self._stacks):
                average_and_share(levels[:depth], first, meanwhile=None if index else look)
        if failed:
            raise failed[0]

    @torch.no_grad()
    def final_average(self, first: int) -> None:
        """The last sync, of the levels from `first` on."""
        for levels in self._stacks:
            final_sync(levels, first)

    @torch.no_grad()
    def catch_up(self) -> None:
        """All anchors become what the model holds now, which all workers hold."""
        for levels in self._stacks:
            for level in levels:
                level.catch_up()

    @property
    def may_differ(self) -> bool:
        """Whether models may differ although they have just averaged."""
        return any(level.may_differ for levels in self._stacks for level in levels)

    def begin_round(self, level: int, learning_rate: float) -> None:
        for levels in self._stacks:
            levels[level].begin_round(learning_rate)


class Gradients(Protocol):
    """What the core loop asks of whoever averages gradients before a step.

    Attributes:
        lockstep: how many of the innermost levels do, in the round at hand.
        exact: how many of them may. One worker alone averages nothing, and has been in lockstep
            with as many when others join it.
    """

    lockstep: int
    exact: int

    def set_lockstep(self, lockstep: int) -> None:
        """The next rounds open: so many levels have averaged after every step so far."""
        ...

    def average(self) -> Any:
        """g_k <- mean_j g_j, over the levels in lockstep."""
        ...


class GradientLevels:
    """Levels over rows of gradients.

    Args:
        levels: innermost first; empty if models are averaged at all times.
    """

    def __init__(self, levels: Sequence[Averaging] = ()) -> None:
        self._levels = levels
        self.lockstep, self.exact = 0, len(levels)

    def set_lockstep(self, lockstep: int) -> None:
        self.lockstep = min(lockstep, len(self._levels))

    def expect(self) -> None:
        """The next backward pass makes the gradients that are averaged."""
        if self.lockstep and isinstance(innermost := self._levels[0], Overlapped):
            innermost.expect()

    def average(self) -> None:
        average_and_share(self._levels[: self.lockstep])
