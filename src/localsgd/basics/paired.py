"""Paired differences: their interval, tests of their mean, and the one rule that decides.

1. *Paired*: a difference for each seed, of two runs with the same seed. Student's t decides: the
   two-sided test of the mean difference against the bound of what is claimed.
2. *Corrected*: p is Holm's among the comparisons that are made together (`holm`).
3. *Seeds*: `LEAST_SEEDS` or more.
4. *Signs*: the exact sign-flip test stands beside t and can only take a verdict back. It has to be
   at `ALPHA` too or, of so few seeds that it never gets there, at its least. Where all
   differences are equal t has no width to judge by, and the sign flips decide alone.

`experiments/claims.py` judges the paper's claims by it, and `localsgd sweep` its own comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from localsgd.errors import UserError

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
LEAST_SEEDS = 5
EXACT = 12
"""Differences up to which all signs are gone through; of more, `FLIPS` at random."""
FLIPS = 9_999


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
    from scipy.special import stdtrit

    deviation = float(np.std(differences, ddof=1))
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * deviation / math.sqrt(n)
    return Interval(mean, deviation, mean - half, mean + half, n)


@dataclass(frozen=True)
class Test:
    """Paired differences beside what is claimed of their mean: that it lies in `low` to `high`.

    Args:
        differences: one for each seed.
        low, high: infinite if there is no bound.
    """

    __test__ = False  # nothing that pytest should collect

    differences: tuple[float, ...]
    low: float = 0.0
    high: float = math.inf

    @property
    def n(self) -> int:
        return len(self.differences)

    @cached_property
    def interval(self) -> Interval:
        return paired(self.differences)

    @property
    def holds(self) -> bool:
        """Whether the mean lies in what is claimed, be it by chance."""
        return self.low < self.interval.mean < self.high

    @cached_property
    def p(self) -> float:
        """The two-sided p of Student's t that the mean is on this side of each relevant bound."""
        return max(self._of_t(bound) for bound in self._bounds())

    @cached_property
    def flips(self) -> float:
        """The p of the sign-flip test that the mean is on this side of each relevant bound."""
        return max(sign_flips(self._from(bound)) for bound in self._bounds())

    def _bounds(self) -> list[float]:
        """The relevant bounds: all if the mean lies between them, else the one it lies beyond."""
        if not self.holds:
            return [self.low if self.interval.mean <= self.low else self.high]
        return [bound for bound in (self.low, self.high) if math.isfinite(bound)]

    def _from(self, bound: float) -> tuple[float, ...]:
        return tuple(one - bound for one in self.differences)

    def _of_t(self, bound: float) -> float:
        from scipy.special import stdtr

        if self.n < 2:
            return 1.0
        found = self.interval
        if has_no_width(self.differences):
            return sign_flips(self._from(bound))
        t = (found.mean - bound) / (found.deviation / math.sqrt(self.n))
        return float(2 * stdtr(self.n - 1, -abs(t)))


def has_no_width(differences: Sequence[float]) -> bool:
    """Whether all values are equal up to rounding."""
    return bool(np.ptp(differences) <= 1e-9 * max(1e-3, np.max(np.abs(differences))))


def sign_flips(differences: Sequence[float]) -> float:
    """p of the mean, two-sided, under all changes of sign; at least 2 / 2^n.

    >>> sign_flips([1.0, 2.0, 3.0, 4.0, 5.0])
    0.0625
    """
    from scipy.stats import permutation_test  # slow to import

    values = np.asarray(differences, dtype=float)
    if len(values) < 2:
        return 1.0
    if len(values) <= EXACT:
        found = permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
        return float(found.pvalue)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=(FLIPS, len(values)))
    extreme = np.abs(signs @ values) >= abs(values.sum()) * (1 - 1e-12)
    return float((1 + extreme.sum()) / (FLIPS + 1))


def decided(test: Test, p: float | None = None) -> bool:
    """Whether complete differences decide on which side of a bound their mean lies.

    Args:
        test: the differences and what is claimed of their mean.
        p: corrected for the comparisons beside it; that of a single one if not given.
    """
    p = test.p if p is None else p
    reachable = max(ALPHA, 2.0 ** (1 - test.n))
    return test.n >= LEAST_SEEDS and p <= ALPHA and test.flips <= reachable


def holm(values: Sequence[float]) -> list[float]:
    """p corrected for their number (Holm, 1979), in the same order; nan counts as 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = [1.0 if math.isnan(value) else value for value in values]
    order = sorted(range(len(values)), key=values.__getitem__)
    found, highest = [1.0] * len(values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[index]))
        found[index] = highest
    return found


def evidence(interval: Interval, unit: str = "", show: Callable[[float], str] | None = None) -> str:
    """An interval in words: `+0.42 points, 95 % interval +0.10 to +0.74, n = 5`."""
    show = show or (lambda value: f"{value:+.3g}")
    mean = f"{show(interval.mean)}{unit}"
    if interval.n < 2:
        return f"{mean}, n = {interval.n}: too few for an interval"
    return f"{mean}, 95 % interval {show(interval.low)} to {show(interval.high)}, n = {interval.n}"
