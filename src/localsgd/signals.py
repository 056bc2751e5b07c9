"""What schedules see beyond the step, agreed by all workers before any of them sees it.

A learning rate that one process sets from its own loss, or the seconds that it waited, would let
processes choose different rounds and wait for each other for ever. So a mean over all workers is
started at each agreement of the outermost level and used at the next one. Where all schedules look
at the step alone nothing is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from localsgd.collective import Collective, Pending
from localsgd.errors import UserError
from localsgd.schedule import Progress, Schedule
from localsgd.strict_json import number

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


@dataclass(frozen=True)
class Signal:
    """What one worker tells: sums over its steps since the last time, where they are sums.

    Args:
        learning_rate: of its inner optimizer.
        waited_seconds: for others, since the run began.
        seconds: since the run began.
        loss: sum of its training losses.
        losses: how many.
    """

    learning_rate: float = 0.0
    waited_seconds: float = 0.0
    seconds: float = 0.0
    loss: float = 0.0
    losses: float = 0.0


class Signals:
    """Learning rate, loss and time, as means over all workers.

    Args:
        schedules: that will see them.
        world: joins all workers.
        device: where the wire takes tensors from.
        known: what all workers know alike already, and need not be told.
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        world: Collective,
        device: torch.device,
        known: Collection[str] = (),
    ) -> None:
        self.sees = {what for schedule in schedules for what in seen_by(schedule)} - set(known)
        if "waited" in self.sees and device.type == "cuda":
            raise UserError(
                "an H that follows the time spent waiting needs workers on CPUs: on a GPU a wait "
                "does not stop the program, and takes no time that could be measured; give H as a "
                "number, which `localsgd plan` finds"
            )
        self._strict = any(getattr(s, "after", None) == "first_decay" for s in schedules)
        self._world = world
        self._device = device
        self._decay = FirstDecay()
        self._agreed: Signal | None = None
        self._coming: Pending[Tensor] | None = None

    @property
    def needed(self) -> bool:
        return bool(self.sees)

    def progress(self, step: int) -> Progress:
        """What is agreed so far."""
        agreed = self._agreed
        if agreed is None:
            return Progress(step=step)
        return Progress(
            step=step,
            learning_rate=agreed.learning_rate,
            decayed=self._decay.decayed,
            waited_seconds=agreed.waited_seconds,
            seconds=agreed.seconds,
            loss=agreed.loss / agreed.losses if agreed.losses else None,
        )

    def exchange(self, own: Sequence[Signal]) -> None:
        """Takes in what was started at the last call and starts the next.

        Args:
            own: of each worker hosted here.
        """
        if not self.needed:
            return
        if self._coming is not None:
            self._agreed = self._received(self._coming)
            self._decay.see(self._agreed.learning_rate)
            if self._strict:
                self._decay.check()
        sent = torch.tensor(
            [[astuple(signal) for signal in own]], dtype=torch.float64, device=self._device
        )
        self._coming = self._world.gather(sent)

    def _received(self, coming: Pending[Tensor]) -> Signal:
        # Added in the workers' order, so that all hostings see the same bits.
        rows = coming.wait()[0].tolist()
        return Signal(*(sum(column) / len(rows) for column in zip(*rows, strict=True)))

    def state(self) -> dict[str, Any]:
        return {
            "agreed": None if self._agreed is None else asdict(self._agreed),
            "coming": None if self._coming is None else self._coming.wait()[0].tolist(),
            "decay": asdict(self._decay),
        }

    def load(self, state: dict[str, Any]) -> None:
        agreed, coming = state["agreed"], state["coming"]
        self._agreed = None if agreed is None else Signal(*map(number, agreed.values()))
        self._decay = FirstDecay(**state["decay"])
        self._coming = None
        if coming is not None:
            rows = [[list(map(number, row)) for row in coming]]
            received = torch.tensor(rows, dtype=torch.float64, device=self._device)
            self._coming = Pending.done(received)


def seen_by(schedule: Schedule) -> tuple[str, ...]:
    """What a schedule looks at beside the step: as it says in `sees`, else the learning rate, which
    all can see.
    """
    if getattr(schedule, "step_only", False):
        return ()
    return getattr(schedule, "sees", ("learning_rate",))
