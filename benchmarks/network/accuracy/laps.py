"""Steps of several arms in turns, so that a temporary slow-down of the machine affects all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks.network.accuracy import trainee
from benchmarks.network.accuracy.setting import Setting
from benchmarks.network.crew import Crew

SECONDS = 900.0
"""Time limit of a call of the crew."""

Laps = dict[str, list[float]]
"""Seconds per step of the slowest process, turn by turn, by arm."""


class Track:
    """Arms that run in turns; each has run a lap off the clock.

    A lap is H steps: each arm synchronises equally often in every one of its laps, the last time at
    its end.

    Args:
        crew: the workers; whatever they trained before is ended.
        arms: who runs.
        setting: of all arms.
        tick: told before each lap who runs it.
    """

    def __init__(
        self,
        crew: Crew,
        arms: Sequence[str],
        setting: Setting,
        tick: Callable[[str], None] = lambda arm: None,
    ) -> None:
        self._crew = crew
        self._arms = list(arms)
        self._setting = setting
        self._tick = tick
        crew.call(trainee.leave)
        for arm in arms:
            crew.call(trainee.begin, arm, setting, 0, seconds=SECONDS)
            self._lap(arm)

    def laps(self, turns: int) -> Laps:
        """Every turn is a lap of each arm, in an order drawn anew."""
        laps: Laps = {arm: [] for arm in self._arms}
        for turn in range(turns):
            for arm in random.Random(turn).sample(self._arms, len(self._arms)):
                laps[arm].append(self._lap(arm))
        return laps

    def _lap(self, arm: str) -> float:
        self._tick(arm)
        steps = self._setting.local_steps
        took = self._crew.call(trainee.advance, arm, steps, seconds=SECONDS)
        return max(wall for wall, _ in took) / steps
