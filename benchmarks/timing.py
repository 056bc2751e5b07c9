"""Times that can be compared on a machine that others use too.

The contestants take turns, and each time is divided by the reference's of the same turn, so that
whatever slows the machine down for a while slows both. Their order is drawn anew for each turn, so
that none always finds the caches as another leaves them. The median of the ratios is the result;
its quartiles say how far to trust it.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Action = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and extremes of several measurements of one thing."""

    median: float
    lower: float
    upper: float
    least: float
    most: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        if len(values) == 1:
            return Spread(*values * 5)
        lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
        return Spread(median, lower, upper, min(values), max(values))


@dataclass
class Times:
    """Seconds of one contestant, turn by turn: by the clock, and of this process's processors."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def turn_seconds(actions: Mapping[str, Action]) -> float:
    """How long a turn of all takes, after one to warm up."""
    for action in actions.values():
        action()
    start = time.perf_counter()
    for action in actions.values():
        action()
    return time.perf_counter() - start


def take_turns(
    actions: Mapping[str, Action], turns: int, before: Action = lambda: None
) -> dict[str, Times]:
    """Times of all contestants.

    Args:
        actions: by the contestant's name; several processes draw the same orders.
        turns: how often each acts.
        before: called, off the clock, before each action.
    """
    names = list(actions)
    times = {name: Times() for name in names}
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(turns):
            for name in random.Random(turn).sample(names, len(names)):
                before()
                wall, cpu = time.perf_counter(), time.process_time()
                actions[name]()
                times[name].wall.append(time.perf_counter() - wall)
                times[name].cpu.append(time.process_time() - cpu)
    finally:
        if collecting:
            gc.enable()
    return times


def ratios(times: list[float], reference: list[float]) -> Spread:
    """The ratio of each time to the reference's in the same turn."""
    return Spread.of([time / base for time, base in zip(times, reference, strict=True)])
