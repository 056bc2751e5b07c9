"""How fast a run goes, and when it will be done."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

SMOOTHING_SECONDS = 5.0
"""Time over which the speed that is shown follows the real one."""


class Pace:
    """Steps a second without pauses, and the time that the rest will take with them.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.steps_per_second: float | None = None
        self.start(0)

    def start(self, step: int) -> None:
        """Begins at `step`: a resumed run's earlier steps say nothing of the time they took."""
        self._began = self._last = self._clock()
        self._first_step = self._last_step = step
        self._paused = 0.0

    @contextmanager
    def paused(self) -> Generator[None]:
        since = self._clock()
        try:
            yield
        finally:
            self._paused += self._clock() - since

    def reached(self, step: int) -> None:
        """Takes note that `step` steps are done."""
        now = self._clock()
        seconds = now - self._last - self._paused
        if step == self._last_step or seconds <= 0:
            return
        rate = (step - self._last_step) / seconds
        if self.steps_per_second is None:
            self.steps_per_second = rate
        else:
            weight = min(1.0, seconds / SMOOTHING_SECONDS)
            self.steps_per_second += weight * (rate - self.steps_per_second)
        self._last, self._last_step, self._paused = now, step, 0.0

    def seconds_for(self, steps: int) -> float | None:
        """How long `steps` more will take at the mean speed so far, pauses included."""
        done = self._last_step - self._first_step
        if not done:
            return None
        return steps * (self._clock() - self._began) / done
