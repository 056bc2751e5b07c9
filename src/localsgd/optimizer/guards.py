"""Checks for mistakes around `LocalSGD` in a user's loop: each raises, or warns once."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from localsgd.averaging.placement import Placement
from localsgd.optimizer.inner_optimizer import InnerSteps
from localsgd.optimizer.model_levels import ModelLevels
from localsgd.optimizer.neighbours import Synchronised
from localsgd.optimizer.replaced import Modules
from localsgd.optimizer.set_inside import SetInside
from localsgd.optimizer.unfinished import Unfinished
from localsgd.optimizer.used_gradients import UsedGradients
from localsgd.optimizer.written import Written
from localsgd.rows.model_rows import Row


class Guards:
    """All checks for one `LocalSGD`.

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
        workers, rank = placement.world.members, placement.process
        self.inner = InnerSteps(inner, workers, rank, alone=placement.worker is None)
        speaks = workers > 1 and rank == 0
        self.part = Synchronised(module, rows, speaks)
        self.modules = Modules(module, rows, changed=self.part.check_coverage)
        self.gradients = UsedGradients(rows)
        self.inside = SetInside(module, rows, speaks)
        self._unfinished = Unfinished(module, workers, rank)
        self._written = Written(module, rows, models, placement)
        self._averaged = True

    def begin_step(self) -> None:
        """Called before a step."""
        self._written.look(self._averaged)

    def stepped(self, first: bool) -> None:
        """Called after the inner optimizer's step."""
        self.gradients.stepped()
        if first:
            self.part.check_coverage()

    def before_world(self) -> None:
        """Called before all levels are averaged."""
        self._written.check()

    def end_step(self, averaged: bool) -> None:
        """Called after a step; `averaged` says whether all workers now hold the same model."""
        self._averaged = averaged
        if averaged:
            self._unfinished.averaged()
        else:
            self._unfinished.step()
        self._written.note(averaged)

    def failed(self) -> None:
        """Called if an error leaves a call of the user's."""
        self._unfinished.averaged()

    def seen(self) -> None:
        """Called after the average was shown, so that the user could save it."""
        self._unfinished.averaged()

    def loaded(self, averaged: bool) -> None:
        """Called after a state was loaded; weights are loaded before or after it."""
        self._averaged = averaged
        self._written.forget()
