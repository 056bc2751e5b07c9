"""The rule by which differences over seeds decide a claim, used for all verdicts.

1. *Paired*: a difference for each seed, of two runs with the same seed. Student's t decides: the
   two-sided test of the mean difference against the bound of what is claimed.
2. *Complete*: only once all runs that were planned are done, and with `LEAST_SEEDS` or more.
3. *Corrected*: p is Holm's within the family of claims (`experiments/families.py`). What is planned
   and not done yet counts with p = 1, so that more runs never take a verdict back.
4. *Signs*: the exact sign-flip test stands beside t and can only take a verdict back. It has to be
   at `ALPHA` too or, of so few seeds that it never gets there, at its least. Where all
   differences are equal t has no width to judge by, and the sign flips decide alone.
5. *One interval, one verdict*: claims about the same numbers are counted once.

A claim is *reproduced* where the mean lies in what is claimed, *not reproduced* where it lies
outside, and else *not decidable at this scale*. The smallest difference of interest is named beside
it and decides nothing. `experiments/power.py` simulates how often the rule errs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from experiments.study import Claim, Job, Kind, Records, State
from localsgd.errors import UserError

CONFIDENCE = 0.95
ALPHA = 1 - CONFIDENCE
LEAST_SEEDS = 5
EXACT = 12
"""Differences up to which all signs are gone through; of more, `FLIPS` at random."""
FLIPS = 9_999
OPEN: State = "not decidable at this scale"


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


def claimed(sign: Literal[-1, 1], margin: float = 0.0) -> tuple[float, float]:
    """What is claimed of a mean that is on the side `sign` of 0, or short of it by no more than
    `margin`: "no worse, within 0.5" is `sign=1, margin=0.5`.
    """
    return (-margin, math.inf) if sign > 0 else (-math.inf, margin)


def verdict(test: Test, p: float | None = None) -> State:
    """The verdict on a claim with complete differences.

    Args:
        test: the differences and the claim.
        p: corrected within a family; that of a single claim if not given.
    """
    p = test.p if p is None else p
    reachable = max(ALPHA, 2.0 ** (1 - test.n))
    if test.n < LEAST_SEEDS or p > ALPHA or test.flips > reachable:
        return OPEN
    return "reproduced" if test.holds else "not reproduced"


def holm(values: Sequence[float]) -> list[float]:
    """p corrected for their number (Holm, 1979), in the same order.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
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


def conclude(
    records: Records,
    sentence: str,
    place: str,
    differences: Sequence[float],
    words: str,
    jobs: Sequence[Job],
    *,
    family: str,
    bounds: tuple[float, float] = (0.0, math.inf),
    unit: str = "",
    show: Callable[[float], str] | None = None,
    least: float | None = None,
    seeds: int | None = None,
    reservation: str = "",
    kind: Kind = "measured",
    subject: Hashable = None,
) -> Claim:
    """A claim about paired differences, whatever they are of, as if it were the only one of its
    family (`corrected` sees to the others).

    Args:
        records: where `jobs` are looked up.
        sentence, place: of the paper.
        differences: of the seeds that are done.
        words: what they are of.
        jobs: all the work that was planned for it.
        family: of `experiments/families.py`.
        bounds: of the mean, as claimed.
        unit, show: of a difference, for people.
        least: the smallest difference of interest beyond a bound.
        seeds: how many differences are planned; as many as there are if not given.
        reservation: why they decide nothing.
        kind: see `Claim`.
        subject: what the differences are of; equal ones are one piece of evidence.
    """
    common = {"jobs": jobs, "kind": kind, "family": family, "subject": subject}
    planned = len(differences) if seeds is None else seeds
    few = f"{planned} seeds are planned, and a verdict takes {LEAST_SEEDS}"
    few = few if planned < LEAST_SEEDS else ""
    few = "a smoke run decides nothing" if records.scale.name == "smoke" else few
    done = sum(records.of(job) is not None for job in jobs)
    if done < len(jobs):
        said = "; ".join(filter(None, (f"{words}: {done} of {len(jobs)} runs are done", few)))
        return Claim(sentence, place, OPEN, said, reservation=few, **common)
    reservation = "; ".join(filter(None, (reservation, few)))
    if not differences:
        reservation = reservation or "no seed has a result"
        said = f"{words}: {reservation}"
        return Claim(sentence, place, OPEN, said, reservation=reservation, **common)
    test = Test(tuple(map(float, differences)), *bounds)
    bound = interest(test, least, unit, show)
    named = "bound" if least is None else "smallest of interest"
    parts = [f"{words}: {evidence(test.interval, unit, show)}", f"{named} {bound}" if bound else ""]
    said = "; ".join(filter(None, (*parts, reservation)))
    state = OPEN if reservation else _as(kind, verdict(test))
    return Claim(sentence, place, state, said, reservation=reservation, test=test, **common)


def interest(
    test: Test, least: float | None, unit: str = "", show: Callable[[float], str] | None = None
) -> str:
    """The smallest difference of interest and whether the interval excludes it; where none is
    given, the bounds of what is claimed, unless that is 0.
    """
    finite = [bound for bound in (test.low, test.high) if math.isfinite(bound)]
    if least is None:
        told = " to ".join(f"{bound:+g}" for bound in finite if bound)
        return f"{told}{unit}" if told else ""
    show = show or (lambda value: f"{value:+g}")
    up = math.isfinite(test.low)
    edge = finite[0] + (least if up else -least)
    beyond = test.interval.high < edge if up else test.interval.low > edge
    return f"{show(edge)}{unit}{', excluded' if beyond else ''}"


def corrected(found: Sequence[Claim]) -> list[Claim]:
    """Claims in the same order, with Holm's correction within each family."""
    families: dict[str, list[int]] = {}
    for index, claim in enumerate(found):
        if claim.kind != "computed" and not claim.reservation:
            families.setdefault(claim.family, []).append(index)
    done = list(found)
    for members in families.values():
        tests = [found[index].test for index in members]
        values = holm([1.0 if test is None else test.p for test in tests])
        for index, test, p in zip(members, tests, values, strict=True):
            if test is not None:
                done[index] = _judged(found[index], test, p, len(members))
    return done


def _judged(claim: Claim, test: Test, p: float, of: int) -> Claim:
    among = f", of {of} claims {p:.2g}" if of > 1 else ""
    said = f"{claim.evidence}; p = {test.p:.2g}{among}, sign flips {test.flips:.2g}"
    return replace(claim, state=_as(claim.kind, verdict(test, p)), evidence=said)


def _as(kind: Kind, state: State) -> State:
    """What is modelled is at best consistent."""
    words: dict[State, State] = {"reproduced": "consistent", "not reproduced": "not consistent"}
    return words.get(state, state) if kind != "measured" else state


def counted_once(found: Sequence[Claim]) -> tuple[list[Claim], list[tuple[Claim, Claim]]]:
    """Claims about numbers that no earlier one is about, and the others, each with the earlier."""
    kept: list[Claim] = []
    again: list[tuple[Claim, Claim]] = []
    first: dict[Hashable, Claim] = {}
    for claim in found:
        if claim.subject is not None and claim.subject in first:
            again.append((claim, first[claim.subject]))
            continue
        first[claim.subject] = claim
        kept.append(claim)
    return kept, again
