"""What schedules see beyond the step, averaged by all workers before any of them sees it.

A learning rate that one process sets from its own loss, or the seconds that it waited, would let
processes choose different rounds and wait for each other for ever. So a mean over all workers is
started at each sync of the outermost level and used at the next one. Where all schedules look
at the step alone nothing is sent. Where they wait for the first decay alone, each worker judges its
own learning rate, and two flags are sent: with the gradients, where those are averaged over all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from localsgd.basics.strict_json import number
from localsgd.errors import UserError
from localsgd.schedule.progress import Progress, Schedule, reported_names, seen_by
from localsgd.wire import Collective, Pending

SMALL_FALLS = 3
"""Falls of a rate above half of its highest after which it counts as falling little by little."""

FLAGS = 2
"""Numbers that a worker tells where only the first decay matters."""


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

    @property
    def creeping(self) -> bool:
        """Whether the rate falls all the time, which has no first decay."""
        return not self.decayed and self.small_falls >= SMALL_FALLS

    def check(self) -> None:
        """Refuses a rate that falls all the time."""
        if self.creeping:
            raise UserError(
                f'after="first-decay" waits for a learning rate below half of its highest, but it '
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
        reported: sum and count of each number that is reported by name, in the order of the names.
    """

    learning_rate: float = 0.0
    waited_seconds: float = 0.0
    seconds: float = 0.0
    loss: float = 0.0
    losses: float = 0.0
    reported: tuple[float, ...] = ()

    @staticmethod
    def width(reported: Sequence[str]) -> int:
        """Numbers in a row, given the names that are reported."""
        return len(fields(Signal)) - 1 + 2 * len(reported)

    @staticmethod
    def of(numbers: Sequence[float]) -> Signal:
        """The signals of a row, in the order of the fields."""
        rate, waited, seconds, loss, losses, *reported = numbers
        return Signal(rate, waited, seconds, loss, losses, tuple(reported))


class Late:
    """Numbers that are read a sync after they were made.

    On a GPU their copy sets out at once, so that whoever reads them does not wait for what was
    queued since.
    """

    def __init__(self, pending: Pending[Tensor], device: torch.device) -> None:
        self._pending = pending
        self._event: torch.cuda.Event | None = None
        if device.type == "cuda":
            there = pending.wait()
            here = torch.empty(there.shape, dtype=there.dtype, pin_memory=True)
            self._pending = Pending.done(here.copy_(there, non_blocking=True))
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(device))

    def read(self) -> Tensor:
        """On the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._pending.wait().cpu()


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
        sights = {sight for schedule in schedules for sight in seen_by(schedule)}
        self._strict = "first-decay" in sights
        self.reported = reported_names(schedules)
        # A first decay is judged by the learning rate; alone, it takes two flags.
        self.sees = {"learning_rate" if s == "first-decay" else s for s in sights} - set(known)
        if "waited" in self.sees and device.type == "cuda":
            raise UserError(
                "an H that follows the time spent waiting needs workers on CPUs: on a GPU a wait "
                "does not stop the program, and takes no time that could be measured; give H as a "
                "number, which `localsgd plan` finds"
            )
        self.flagged = self.needed and sights == {"first-decay"}
        self._world = world
        self._device = device
        self._decay = FirstDecay()  # of the mean rate; of this worker's own where flags are sent
        self._decayed = False
        self._known: Signal | None = None
        self._coming: Late | None = None

    @property
    def needed(self) -> bool:
        return bool(self.sees)

    @property
    def silent(self) -> set[str]:
        """The names of which no rank had a number to tell the last time."""
        if self._known is None:
            return set()
        counts = (self._known.losses, *self._known.reported[1::2])
        pairs = zip(("loss", *self.reported), counts, strict=True)
        return {name for name, count in pairs if not count}

    def progress(self, step: int) -> Progress:
        """What has been averaged so far."""
        known = self._known
        if known is None:
            return Progress(step=step, decayed=self._decayed)
        return Progress(
            step=step,
            learning_rate=known.learning_rate,
            decayed=self._decayed,
            waited_seconds=known.waited_seconds,
            seconds=known.seconds,
            loss=known.loss / known.losses if known.losses else None,
            reported={
                name: total / count
                for name, total, count in zip(
                    self.reported, known.reported[::2], known.reported[1::2], strict=True
                )
                if count
            },
        )

    def flags(self, rate: float) -> list[float]:
        """What the one worker hosted here tells where only the first decay matters: whether its own
        rate has decayed, and whether it falls all the time. Asked twice in a step it says the same.
        """
        self._decay.see(rate)
        return [float(self._decay.decayed), float(self._decay.creeping)]

    @property
    def width(self) -> int:
        """Numbers that a worker tells."""
        return FLAGS if self.flagged else Signal.width(self.reported)

    def exchange(self, own: Tensor | None, carried: Tensor | None = None) -> None:
        """Takes in what was started at the last call and starts the next.

        Args:
            own: of each worker hosted here, `[w, n]` in the order of `Signal`; flags `[1, 2]` where
                those are sent.
            carried: rows of all workers `[K, n]` that have come by another way, or one row of their
                mean; `own` is not sent then.
        """
        if not self.needed:
            return
        if self._coming is not None:
            self._take_in(self._coming.read())
        if carried is not None:
            self._coming = Late(Pending.done(carried), self._device)
        elif own is not None:
            sent = own.to(self._device).unsqueeze(0).contiguous()
            self._coming = Late(self._world.gather(sent).then(lambda all_: all_[0]), self._device)

    def _take_in(self, received: Tensor) -> None:
        """Rows `[K, ...]` of all workers, or the one row of their mean."""
        # Added in the workers' order, so that all hostings see the same bits.
        rows = received.tolist()
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        if self.flagged:
            decayed, creeping = means
            self._decayed = self._decayed or decayed > 0.5  # of more than half of the workers
            if creeping > 0 and not self._decayed:
                self._refuse_creeping()
            return
        self._known = Signal.of(means)
        self._decay.see(self._known.learning_rate)
        self._decayed = self._decay.decayed
        if self._strict:
            self._decay.check()

    def _refuse_creeping(self) -> None:
        self._decay.check()
        raise UserError(
            'after="first-decay" waits for a learning rate below half of its highest, but on '
            "another rank it falls little by little; give all ranks the same scheduler, and the "
            "switch as a step, such as after=localsgd.epochs(150, steps_per_epoch=...)"
        )

    def state(self) -> dict[str, Any]:
        return {
            "known": None if self._known is None else asdict(self._known),
            "coming": None if self._coming is None else self._coming.read().tolist(),
            "decay": asdict(self._decay),
            "decayed": self._decayed,
        }

    def load(self, state: dict[str, Any]) -> None:
        known, coming = state["known"], state["coming"]
        self._known = None
        if known is not None:
            known = dict(known)
            reported = known.pop("reported", ())
            numbers = [*map(number, (*known.values(), *reported))]
            _check_width(numbers, Signal.width(self.reported))
            self._known = Signal.of(numbers)
        self._decay = FirstDecay(**state["decay"])
        self._decayed = state.get("decayed", self._decay.decayed)
        self._coming = None
        if coming is not None:
            rows = [list(map(number, row)) for row in coming]
            for row in rows:
                _check_width(row, self.width)
            received = torch.tensor(rows, dtype=torch.float64)
            self._coming = Late(Pending.done(received), received.device)


def _check_width(numbers: Sequence[float], wanted: int) -> None:
    if len(numbers) != wanted:
        raise ValueError(f"its signals have {len(numbers)} numbers in place of {wanted}")
