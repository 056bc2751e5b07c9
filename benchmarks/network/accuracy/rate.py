"""The link at which DDP has a given share of the speed that it would have without communication.

With c seconds of compute in a step and e of waiting the share is s = c / (c + e), and its odds
s / (1 - s) = c / e grow in proportion to the link's rate where e does not overlap with c, and
faster where it does. So the search goes along a line over logarithms, whose slope is 1 until there
are two points for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.network import rates
from benchmarks.network.refusal import Refused

START = 50_000_000
CLOSE = 0.01
MOST_POINTS = 5
STEP = 1_000_000
"""Rates are whole multiples of this many bits a second."""
SLOPES = 0.5, 4.0
SHARES = 0.02, 0.98


@dataclass(frozen=True)
class Point:
    """DDP's share as measured at a rate."""

    rate: int
    share: float


def search(target: float, measure: Callable[[int], float], start: int = START) -> list[Point]:
    """Points on the way to a rate with the share `target`; the nearest one is the last.

    Args:
        target: in (0, 1).
        measure: DDP's share at a rate.
    """
    if not SHARES[0] <= target <= SHARES[1]:
        raise Refused(f"a share of {target:g} can't be found; give one from 0.02 to 0.98")
    points: list[Point] = []
    rate = start
    while rate not in [point.rate for point in points] and len(points) < MOST_POINTS:
        points.append(Point(rate, measure(rate)))
        if abs(points[-1].share - target) <= CLOSE:
            break
        rate = _next(target, points)
    return sorted(points, key=lambda point: -abs(point.share - target))


def _next(target: float, points: list[Point]) -> int:
    """The rate at which the line through the two points nearest to the target reaches it."""
    *others, nearest = sorted(points, key=lambda point: -abs(point.share - target))
    slope = 1.0
    if others:
        other = others[-1]
        rise = _odds(nearest.share) - _odds(other.share)
        slope = min(max(rise / math.log(nearest.rate / other.rate), SLOPES[0]), SLOPES[1])
    rate = nearest.rate * math.exp((_odds(target) - _odds(nearest.share)) / slope)
    return min(max(round(rate / STEP) * STEP, rates.LEAST), rates.MOST)


def _odds(share: float) -> float:
    """Their logarithm."""
    inside = min(max(share, SHARES[0]), SHARES[1])
    return math.log(inside / (1 - inside))
