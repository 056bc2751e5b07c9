"""Paired differences over seeds, and what they say of a claim.

A claim is *reproduced* where the whole 95 % t-interval of the mean difference lies on its side of
its threshold, *not reproduced* where it lies on the other side, and *not decidable at this scale*
where it lies on both. Nothing corrects for the number of claims.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from experiments.study import State
from localsgd.errors import UserError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """The mean of n paired differences and its t-interval."""

    mean: float
    low: float
    high: float
    n: int


def paired(differences: Sequence[float]) -> Interval:
    """The interval of the mean of differences, one for each seed.

    Raises:
        UserError: fewer than two.
    """
    n = len(differences)
    if n < 2:
        raise UserError(f"{n} differences have no interval; give two or more")
    mean, deviation = float(np.mean(differences)), float(np.std(differences, ddof=1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def judge(interval: Interval, sign: Literal[-1, 1], margin: float = 0.0) -> State:
    """Whether the difference is on the side `sign` of 0, or short of it by no more than `margin`.

    "No worse, within 0.5" is `sign=1, margin=0.5`: reproduced where the interval is above -0.5.
    """
    low, high = sorted((sign * interval.low, sign * interval.high))
    if low > -margin:
        return "reproduced"
    return "not reproduced" if high < -margin else "not decidable at this scale"
