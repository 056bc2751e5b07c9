"""A collective with a simulated latency: every call takes a given time longer.

    ready at  =  start + seconds + blocking time of the call itself

(Lin et al. 2020, appendix on hierarchical local SGD: a delay of 1 s and of 50 s for each global
synchronisation.) Computation between the start and the wait hides the delay.

The delay passes on a clock: `WALL` really waits, and `SimulatedClock` only adds the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

from localsgd.errors import UserError
from localsgd.wire.collective import Collective, Pending, Sending


class Clock(Protocol):
    """A clock that can be read and waited on."""

    @property
    def simulated(self) -> bool:
        """Whether some of its seconds did not really pass. Tables of its times say so."""
        ...

    def now(self) -> float:
        """Seconds since some start."""
        ...

    def wait_until(self, moment: float) -> None: ...


class WallClock:
    """Real time."""

    simulated = False

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self.now()))


WALL = WallClock()


class SimulatedClock:
    """Real time plus the delays, without waiting for them.

    Every process has its own. They are equal if all processes have the same delays.

    Attributes:
        skipped_seconds: the delays added so far.
    """

    simulated = True

    def __init__(self) -> None:
        self.skipped_seconds = 0.0

    def now(self) -> float:
        return time.perf_counter() + self.skipped_seconds

    def wait_until(self, moment: float) -> None:
        self.skipped_seconds += max(0.0, moment - self.now())


@dataclass(frozen=True)
class WithLatency:
    """`inner`, with every result delayed.

    Args:
        inner: does the work.
        seconds: the delay of a call, at least 0.
        clock: the clock on which the delay passes.
    """

    inner: Collective
    seconds: float
    clock: Clock = WALL

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < float("inf"):
            raise UserError(
                f"a delay of {self.seconds!r} seconds can't be waited for; give 0 or more"
            )

    @property
    def members(self) -> int:
        return self.inner.members

    def sum(self, x: Tensor) -> Pending[Tensor]:
        return self._late(lambda: self.inner.sum(x))

    def gather(self, x: Tensor) -> Pending[Tensor]:
        return self._late(lambda: self.inner.gather(x))

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        return self._late(lambda: self.inner.exchange(x))

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        return self._late(lambda: cast(Sending, self.inner).send(x, to))

    def _late(self, call: Callable[[], Pending[Tensor]]) -> Pending[Tensor]:
        pending = call()
        due = self.clock.now() + self.seconds

        def finish() -> Tensor:
            start = self.clock.now()
            result = pending.wait()
            self.clock.wait_until(due + self.clock.now() - start)
            return result

        return Pending(finish)
