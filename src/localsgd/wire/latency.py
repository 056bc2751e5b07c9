"""A collective whose results come late: a declared delay for each call, as on a link of that
latency.

    ready at  =  start + seconds + what the call itself blocks

(Lin et al. 2020, appendix on hierarchical local SGD: a delay of 1 s and of 50 s for each global
synchronisation.) What is computed between the start and the wait hides it, as far as it lasts.

The delay passes on a clock: on `WALL` one really waits; on a `SimulatedClock` the time is added to
the account, and nobody waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from localsgd.errors import UserError
from localsgd.wire.collective import Collective, Pending


class Clock(Protocol):
    """What time it is, and how one waits for a later one."""

    @property
    def simulated(self) -> bool:
        """Whether some of its seconds never passed. Whoever shows its times says so."""
        ...

    def now(self) -> float:
        """Seconds since some start."""
        ...

    def wait_until(self, moment: float) -> None: ...


class WallClock:
    """The time on the wall."""

    simulated = False

    def now(self) -> float:
        return time.perf_counter()

    def wait_until(self, moment: float) -> None:
        time.sleep(max(0.0, moment - self.now()))


WALL = WallClock()


class SimulatedClock:
    """Wall time, and the delays as if they had passed.

    Every process has its own. They agree where all processes have the same delays.

    Attributes:
        skipped_seconds: what was added so far.
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
    """`inner`, every result of which comes so many seconds later.

    Args:
        inner: does the work.
        seconds: the delay of a call, at least 0.
        clock: on which it passes.
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

    def _late(self, call: Callable[[], Pending[Tensor]]) -> Pending[Tensor]:
        pending = call()
        due = self.clock.now() + self.seconds

        def finish() -> Tensor:
            start = self.clock.now()
            result = pending.wait()
            self.clock.wait_until(due + self.clock.now() - start)
            return result

        return Pending(finish)
