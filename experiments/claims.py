"""Paired differences over seeds, and what they say of a claim.

A claim is *reproduced* where the whole 95 % t-interval of the mean difference lies on its side of
its threshold, *not reproduced* where it lies on the other side, and *not decidable at this scale*
where it lies on both, or where there are too few seeds for an interval. It is decided once all
runs that were planned are done (`experiments.arms.of_differences`). Nothing corrects for the number
of claims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from experiments.study import State
from localsgd.errors import UserError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of n paired differences, their deviation and the t-interval of the mean.

    Of a single difference, deviation and bounds are nan: it decides nothing.
    """

    mean: float
    deviation: float
    low: float
    high: float
    n: int


def paired(differences: Sequence[float]) -> Interval:
    """The interval of the mean of differences, one for each seed.

    >>> found = paired([1.0, 2.0, 3.0])
    >>> found.mean, found.deviation, round(found.high, 3)
    (2.0, 1.0, 4.484)

    Raises:
        UserError: there are none.
    """
    n = len(differences)
    if not n:
        raise UserError("no differences have no mean; give one for each seed")
    mean = float(np.mean(differences))
    if n == 1:
        return Interval(mean, math.nan, math.nan, math.nan, 1)
    deviation = float(np.std(differences, ddof=1))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(n)
    return Interval(mean, deviation, mean - half, mean + half, n)


def judge(interval: Interval, sign: Literal[-1, 1], margin: float = 0.0) -> State:
    """Whether the difference is on the side `sign` of 0, or short of it by no more than `margin`.

    "No worse, within 0.5" is `sign=1, margin=0.5`: reproduced where the interval is above -0.5.
    """
    low, high = sorted((sign * interval.low, sign * interval.high))
    if low > -margin:
        return "reproduced"
    return "not reproduced" if high < -margin else "not decidable at this scale"


def evidence(interval: Interval, unit: str = "") -> str:
    """An interval in words: `+0.42 points, 95 % interval +0.10 to +0.74, n = 5`."""
    mean = f"{interval.mean:+.3g}{unit}"
    if interval.n < 2:
        return f"{mean}, n = {interval.n}: too few for an interval"
    return f"{mean}, 95 % interval {interval.low:+.3g} to {interval.high:+.3g}, n = {interval.n}"
