"""What schedules see beyond the step, agreed by all workers before any of them sees it.

A learning rate that one process sets from its own loss, or the seconds that it waited, would let
processes choose different rounds and wait for each other for ever. So a mean over all workers is
started at each agreement of the outermost level and used at the next one. Where all schedules look
at the step alone nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from localsgd.collective import Collective, Pending
from localsgd.errors import UserError
from localsgd.schedule import Progress, Schedule

SMALL_FALLS = 3
"""So many falls with the rate still above half of its highest are no decay in steps."""


@dataclass
class FirstDecay:
    """Whether the learning rate has fallen below half of its highest value so far.

    Args:
        highest: rate so far.
        last: rate seen.
        small_falls: since the highest rate, with the rate still at half of it or above.
        decayed: stays, once it is so.
    """

    highest: float = 0.0
    last: float = 0.0
    small_falls: int = 0
    decayed: bool = False

    def see(self, rate: float) -> None:
        if rate >= self.highest:
            self.highest, self.small_falls = rate, 0
        elif rate < self.highest / 2:
            self.decayed = True
        elif rate < self.last:
            self.small_falls += 1
        self.last = rate

    def check(self) -> None:
        """Refuses a rate that falls all the time, as that has no first decay."""
        if not self.decayed and self.small_falls >= SMALL_FALLS:
            raise UserError(
                f'after="first_decay" waits for a learning rate below half of its highest, but it '
                f"falls little by little ({self.highest:g} to {self.last:g} in {self.small_falls} "
                "falls or more, as cosine does); give the switch as a step, such as "
                "after=localsgd.epochs(150, steps_per_epoch=...)"
            )


class Signals:
    """Learning rate and seconds waited, as means over all workers.

    Args:
        schedules: that will see them.
        world: joins all workers.
        device: where the wire takes tensors from.
    """

    def __init__(
        self, schedules: Sequence[Schedule], world: Collective, device: torch.device
    ) -> None:
        self.needed = not all(getattr(schedule, "step_only", False) for schedule in schedules)
        self._strict = any(getattr(s, "after", None) == "first_decay" for s in schedules)
        self._world = world
        self._device = device
        self._decay = FirstDecay()
        self._agreed: tuple[float, float] | None = None
        self._coming: Pending[Tensor] | None = None

    def progress(self, step: int) -> Progress:
        if self._agreed is None:
            return Progress(step=step)
        rate, waited = self._agreed
        return Progress(
            step=step, learning_rate=rate, decayed=self._decay.decayed, waited_seconds=waited
        )

    def exchange(self, learning_rate: float, waited_seconds: float) -> None:
        """Takes in what was started at the last call and starts the next."""
        if not self.needed:
            return
        if self._coming is not None:
            rate, waited = self._received(self._coming)
            self._agreed = rate, waited
            self._decay.see(rate)
            if self._strict:
                self._decay.check()
        sent = torch.tensor(
            [[[learning_rate, waited_seconds]]], dtype=torch.float64, device=self._device
        )
        self._coming = self._world.sum(sent)

    def _received(self, coming: Pending[Tensor]) -> list[float]:
        return (coming.wait()[0] / self._world.members).tolist()

    def state(self) -> dict[str, Any]:
        return {
            "agreed": self._agreed,
            "coming": None if self._coming is None else self._coming.wait()[0].tolist(),
            "decay": asdict(self._decay),
        }

    def load(self, state: dict[str, Any]) -> None:
        agreed, coming = state["agreed"], state["coming"]
        self._agreed = None if agreed is None else (agreed[0], agreed[1])
        self._decay = FirstDecay(**state["decay"])
        self._coming = None
        if coming is not None:
            total = torch.tensor([coming], dtype=torch.float64, device=self._device)
            self._coming = Pending.done(total)
