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
        self._observations = Observations(1, device, self.signals.reported)
        self._alone = alone
        self._silent: set[str] = set()  # names without a number at the last exchange
        self._ledger = ledger
        self._inner = inner
        self._needs_rate = needs_rate or "learning_rate" in self.signals.sees

    @property
    def wanted(self) -> set[str]:
        """The names of the numbers that schedules judge by."""
        return {*self.signals.reported} | ({"loss"} & self.signals.sees)

    def learning_rate(self, step: int = 0) -> float:
        """γ of the step at hand; refused if it is None and needed."""
        return learning_rate_of(self._inner, self._needs_rate)

    def add(self, numbers: Mapping[str, Tensor | float]) -> None:
        """Adds the numbers of a step, by name; those that no schedule looks at are left out."""
        for name, number in numbers.items():
            if isinstance(number, Tensor):
                given = number.numel() == 1 and not number.is_complex()
            else:
                given = isinstance(number, int | float)
            if not given:
                raise UserError(
                    f"report({name}=...) takes one number, and was given {_described(number)}; "
                    "give a float, or a tensor of one element"
                )
            if name in self.wanted:
                self._observations.add(0, number, name)

    def flags(self) -> list[float]:
        return self.signals.flags(self.learning_rate())

    def exchange(self, carried: Tensor | None) -> None:
        """Tells the others, and takes in what they told at the last call.

        Args:
            carried: the mean of all workers' flags, if it has come with the gradients.
        """
        if self.signals.needed:
            rows = None if carried is None else carried.unsqueeze(0)
            self.signals.exchange(self.own(), rows)

    def own(self) -> Tensor:
        """What this worker tells, `[1, n]`; new sums begin."""
        if self.signals.flagged:
            return torch.tensor([self.flags()])
        silent = self._observations.silent if self._alone else self.signals.silent
        before, self._silent = self._silent, silent
        if missing := self.wanted & before & self._silent:
            what, call = min(missing), f"report({min(missing)}=...)"
            if what == "loss":
                what, call = "the training loss", "report_loss(loss)"
            raise UserError(
                f"local_steps judges by {what}, and nobody has told it; call optimizer.{call} in "
                "every step"
            )
        return self._observations.signals(self.learning_rate(), self._ledger.seconds)

    def nothing(self) -> Tensor:
        """Of the shape of `own`, for a worker that has trained nothing."""
        return torch.zeros(1, self.signals.width)

    def take(self, rows: Tensor) -> None:
        """Takes in what all workers told, `[K, n]`, a sync after they did."""
        self.signals.exchange(None, rows)

    def state(self) -> dict[str, Any]:
        told = [*map(float, self._observations.state(0)), self._observations.seconds]
        return {"signals": self.signals.state(), "told": told}

    def load(self, state: Mapping[str, Any]) -> None:
        self.signals.load(state["signals"])
        *told, self._observations.seconds = state["told"]
        self._observations.load(0, told)
        self._observations.restart()


def _described(value: object) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
