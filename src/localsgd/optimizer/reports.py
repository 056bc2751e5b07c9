"""What a worker in a user's own loop tells the others for schedules to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from localsgd.errors import UserError
from localsgd.optimizer.inner_optimizer import learning_rate_of
from localsgd.schedule.observations import Observations
from localsgd.schedule.progress import Schedule
from localsgd.schedule.signals import Signals
from localsgd.wire import Collective, Ledger


class Reports:
    """Gathers losses, learning rate and time of this worker, and exchanges them.

    Args:
        schedules: that look at the means of all workers.
        everyone: joins all ranks of all workers.
        device: where the wire takes tensors from.
        ledger: knows how long this worker has waited.
        inner: the inner optimizer, which has the learning rate.
        needs_rate: whether anybody else goes by the learning rate.
        alone: whether this rank is the whole worker; otherwise some ranks may have no loss.
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        everyone: Collective,
        device: torch.device,
        ledger: Ledger,
        inner: Optimizer,
        needs_rate: bool,
        alone: bool = True,
    ) -> None:
        self.signals = Signals(schedules, everyone, device)
        self._observations = Observations(1, device)
        self._alone = alone
        self._silent = False  # at the last exchange, about losses
        self._ledger = ledger
        self._inner = inner
        self._needs_rate = needs_rate or "learning_rate" in self.signals.sees

    @property
    def of_loss(self) -> bool:
        """Whether schedules judge by the training loss."""
        return "loss" in self.signals.sees

    def learning_rate(self, step: int = 0) -> float:
        """γ of the step at hand; refused if it is None and needed."""
        return learning_rate_of(self._inner, self._needs_rate)

    def add(self, loss: Tensor | float) -> None:
        """The training loss of a step."""
        self._observations.add(0, loss)

    def flags(self) -> list[float]:
        return self.signals.flags(self.learning_rate())

    def exchange(self, carried: Tensor | None) -> None:
        """Tells the others, and takes in what they told at the last call.

        Args:
            carried: the mean of all workers' flags, if it has come with the gradients.
        """
        if self.signals.needed:
            self.signals.exchange(self._own(), carried)

    def _own(self) -> Tensor:
        if self.signals.flagged:
            return torch.tensor([self.flags()])
        silent = self._observations.silent if self._alone else self.signals.silent
        was_silent, self._silent = self._silent, silent
        if self.of_loss and was_silent and self._silent:
            raise UserError(
                "local_steps judges by the training loss, and nobody has told it; call "
                "optimizer.report_loss(loss) in every step"
            )
        return self._observations.signals(self.learning_rate(), self._ledger.seconds)

    def state(self) -> dict[str, Any]:
        told = [*map(float, self._observations.state(0)), self._observations.seconds]
        return {"signals": self.signals.state(), "told": told}

    def load(self, state: Mapping[str, Any]) -> None:
        self.signals.load(state["signals"])
        loss, losses, self._observations.seconds = state["told"]
        self._observations.load(0, (loss, int(losses)))
        self._observations.restart()
