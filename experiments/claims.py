"""The rule by which differences over seeds decide a claim, used for all verdicts.

1. *Decided* by `localsgd/basics/paired.py`: Student's t of differences that are paired by seed,
   corrected by Holm, with sign flips beside it.
2. *Complete*: only once all runs that were planned are done.
3. *A family* (`experiments/families.py`) is what is corrected together. What is planned and not
   done yet counts with p = 1, so that doing it never takes a verdict back; so does a claim of which
   a seed has no result. Claims that could decide nothing whatever comes out are left out of the
   number: fewer seeds are planned than a verdict takes, or a baseline is not tuned.
4. *One interval, one verdict*: claims about the same numbers are counted once.

A claim is *reproduced* where the mean lies in what is claimed, *not reproduced* where it lies
outside, and else *not decidable at this scale*. The smallest difference of interest is named beside
it and decides nothing. `experiments/power.py` simulates how often the rule errs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Literal

from experiments.study import Claim, Job, Kind, Records, State
from localsgd.basics.paired import LEAST_SEEDS, Test, decided, evidence, holm

OPEN: State = "not decidable at this scale"


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
    if not decided(test, p):
        return OPEN
    return "reproduced" if test.holds else "not reproduced"


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
    lacking: str = "",
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
        reservation: why they decide nothing whatever comes out.
        lacking: what is lacking although all is done, such as a seed without a result.
        kind: see `Claim`.
        subject: what the differences are of; equal ones are one piece of evidence.
    """
    common = {"jobs": jobs, "kind": kind, "family": family, "subject": subject}
    planned = len(differences) if seeds is None else seeds
    few = f"{planned} seeds are planned, and a verdict takes {LEAST_SEEDS}"
    few = few if planned < LEAST_SEEDS else ""
    few = "a smoke run decides nothing" if records.scale.name == "smoke" else few
    reservation = "; ".join(filter(None, (reservation, few)))
    done = sum(records.of(job) is not None for job in jobs)
    if done < len(jobs):
        said = "; ".join(
            filter(None, (f"{words}: {done} of {len(jobs)} runs are done", reservation))
        )
        return Claim(sentence, place, OPEN, said, reservation=reservation, **common)
    finite = [one for one in differences if math.isfinite(one)]
    if len(finite) < planned and not lacking:
        lacking = f"{len(finite)} of {planned} seeds have a result"
    if not finite:
        said = f"{words}: {'; '.join(filter(None, (lacking, reservation)))}"
        return Claim(sentence, place, OPEN, said, reservation=reservation, **common)
    test = Test(tuple(map(float, finite)), *bounds)
    bound = interest(test, least, unit, show)
    named = "bound" if least is None else "smallest of interest"
    parts = [f"{words}: {evidence(test.interval, unit, show)}", f"{named} {bound}" if bound else ""]
    said = "; ".join(filter(None, (*parts, lacking, reservation)))
    if lacking:
        return Claim(sentence, place, OPEN, said, reservation=reservation, **common)
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
    whole = Counter(claim.family for claim in found if claim.kind != "computed")
    for index, claim in enumerate(found):
        if claim.kind != "computed" and not claim.reservation:
            families.setdefault(claim.family, []).append(index)
    done = list(found)
    for family, members in families.items():
        tests = [found[index].test for index in members]
        values = holm([1.0 if test is None else test.p for test in tests])
        for index, test, p in zip(members, tests, values, strict=True):
            if test is not None:
                done[index] = _judged(found[index], test, p, len(members), whole[family])
    return done


def _judged(claim: Claim, test: Test, p: float, of: int, whole: int) -> Claim:
    """The claim with p corrected for `of` claims, all that could be decided of `whole`."""
    some = f" that can be decided, of {whole}" if of < whole else ""
    among = f", among {of} claims{some}: {p:.2g}" if of > 1 else ""
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
