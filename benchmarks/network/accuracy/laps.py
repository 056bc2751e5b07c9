"""Steps of several arms in turns, so that what slows the machine down for a while slows all."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from benchmarks.network.accuracy import trainee
from benchmarks.network.accuracy.setting import Setting
from benchmarks.network.crew import Crew

SECONDS = 900.0
"""That a call of the crew may take."""

Laps = dict[str, list[float]]
"""Seconds a step of the slowest process, turn by turn, by arm."""


def take_laps(
    crew: Crew,
    arms: Sequence[str],
    setting: Setting,
    turns: int,
    tick: Callable[[str], None] = lambda what: None,
) -> Laps:
    """Every turn is a lap of each arm, in an order drawn anew. The first lap is off the clock.

    A lap is H steps: each arm agrees equally often in every one of its laps, the last time at its
    end.

    Args:
        tick: told before each lap who runs it.
    """
    for arm in arms:
        tick(arm)
        crew.call(trainee.begin, arm, setting, 0, seconds=SECONDS)
        crew.call(trainee.advance, arm, setting.local_steps, seconds=SECONDS)
    laps: Laps = {arm: [] for arm in arms}
    for turn in range(turns):
        for arm in random.Random(turn).sample(list(arms), len(arms)):
            tick(arm)
            took = crew.call(trainee.advance, arm, setting.local_steps, seconds=SECONDS)
            laps[arm].append(max(wall for wall, _ in took) / setting.local_steps)
    crew.call(trainee.leave)
    return laps
