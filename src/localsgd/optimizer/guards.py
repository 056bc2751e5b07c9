"""What goes wrong around `LocalSGD` in a loop of one's own: each is refused, or said once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from localsgd.averaging.placement import Placement
from localsgd.optimizer.inner_optimizer import InnerSteps
from localsgd.optimizer.model_levels import ModelLevels
from localsgd.optimizer.neighbours import Synchronised
from localsgd.optimizer.unfinished import Unfinished
from localsgd.optimizer.written import Written
from localsgd.rows.model_rows import Row


class Guards:
    """Looks on while one `LocalSGD` is used.

    Args:
        inner: the inner optimizer.
        module: the model.
        rows: of this worker.
        models: the levels over them.
        placement: where the other workers are.
    """

    def __init__(
        self,
        inner: Optimizer,
        module: nn.Module,
        rows: Sequence[Row],
        models: ModelLevels,
        placement: Placement,
    ) -> None:
        workers, rank = placement.world.members, placement.rank
        self.inner = InnerSteps(inner, workers, rank)
        self.part = Synchronised(module, rows, speaks=workers > 1 and rank == 0)
        self._unfinished = Unfinished(module, workers, rank)
        self._written = Written(module, rows, models, placement.world)
        self._averaged = True

    def begin_step(self) -> None:
        """Before anything of a step."""
        self._written.look(self._averaged)

    def stepped(self, first: bool) -> None:
        """The inner optimizer has stepped."""
        if first:
            self.part.check_coverage()

    def before_world(self) -> None:
        """All levels are about to be averaged."""
        self._written.check()

    def end_step(self, averaged: bool) -> None:
        """After all of a step; `averaged` says whether all workers hold the same model now."""
        self._averaged = averaged
        if averaged:
            self._unfinished.averaged()
        else:
            self._unfinished.step()
        self._written.note(averaged)

    def seen(self) -> None:
        """The average was shown, and so could be saved."""
        self._unfinished.averaged()

    def loaded(self, averaged: bool) -> None:
        """A state was loaded, and weights with it, before or after."""
        self._averaged = averaged
        self._written.forget()
