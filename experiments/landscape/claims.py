"""The paper's claims as differences paired over seeds, and whether they hold (see `design`).

Letters: s seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from experiments.claims import OPEN, claimed, verdict
from experiments.landscape.design import LOCAL_STEPS, MANY, NEAR, SETS
from experiments.landscape.measures import MINI_BATCH, POST_LOCAL, SCRATCH, SMALL
from experiments.study import State
from localsgd.basics.paired import Test, holm

Records = list[dict[str, Any]]
OURS = "other measures of sharpness"
Value = Callable[[Records], float]
"""A number of one seed's records."""


@dataclass(frozen=True)
class Claim:
    """One claim: `value` of a seed is on the side `sign` of 0.

    Args:
        text: what is claimed.
        where: in the paper; empty for what it does not claim.
        value: of a seed's records: the logarithm of a ratio, or a difference.
        sign: -1 if the value should be negative.
        unit: how the value is shown: as a ratio, in percent points, or as it is.
        family: claims that are corrected together.
    """

    text: str
    where: str
    value: Value
    sign: Literal[-1, 1]
    unit: Literal["ratio", "points", "loss"] = "ratio"
    family: str = "flatness"

    @property
    def bounds(self) -> tuple[float, float]:
        """The bounds of the mean, as claimed."""
        return claimed(self.sign)

    @property
    def least(self) -> float:
        """The smallest difference of interest: of a twentieth, of 0.2 points, of 0.01."""
        return {"ratio": float(np.log(1.05)), "points": 0.2, "loss": 0.01}[self.unit]

    def show(self, value: float) -> str:
        """A value for people."""
        if self.unit == "ratio":
            return f"x {np.exp(value):.4g}"
        return f"{value:+.3g}"


@dataclass(frozen=True)
class Judged:
    """A claim, its differences, p within its family, and what became of it."""

    claim: Claim
    test: Test
    p: float
    state: State


def judged(claims: Sequence[Claim], seeds: Sequence[Records], planned: int) -> list[Judged]:
    """All claims by the rule of `experiments/claims.py`; undecided until all seeds are there."""
    tests = [
        Test(tuple(claim.value(records) for records in seeds), *claim.bounds) for claim in claims
    ]
    values = [0.0] * len(claims)
    for family in {claim.family for claim in claims}:
        members = [index for index, claim in enumerate(claims) if claim.family == family]
        for index, p in zip(members, holm([tests[i].p for i in members]), strict=True):
            values[index] = p
    whole = len(seeds) >= planned
    return [
        Judged(claim, test, p, verdict(test, p) if whole else OPEN)
        for claim, test, p in zip(claims, tests, values, strict=True)
    ]


def by_seed(records: Records) -> list[Records]:
    """Records apart by seed, in order."""
    seeds = sorted({record["seed"] for record in records})
    return [[record for record in records if record["seed"] == seed] for seed in seeds]


def one(records: Records, kind: str, **wanted: Any) -> dict[str, Any]:
    """The only record of a kind with these values."""
    (found,) = chosen(records, kind, **wanted)
    return found


def chosen(records: Records, kind: str, **wanted: Any) -> Records:
    return [
        record
        for record in records
        if record["kind"] == kind and all(record.get(k) == v for k, v in wanted.items())
    ]


def phase_two(arm: str, data: str) -> Value:
    """The mean of log lambda_max over phase 2."""
    return lambda records: float(
        np.mean(
            [
                np.log(record["largest"])
                for record in chosen(records, "largest eigenvalue", model=arm, data=data)
            ]
        )
    )


def top(arm: str, data: str, count: int) -> Value:
    """The mean logarithm of the `count` largest eigenvalues at the end."""
    return lambda records: float(
        np.mean(np.log(one(records, "eigenvalues", model=arm, data=data)["values"][:count]))
    )


def logarithm(arm: str, data: str, kind: str, key: str) -> Value:
    return lambda records: float(np.log(one(records, kind, model=arm, data=data)[key]))


def accuracy(arm: str) -> Value:
    return lambda records: 100 * one(records, "result", model=arm, data="test")["accuracy"]


def rises(records: Records, arm: str, data: str) -> np.ndarray:
    """For each direction the mean rise of the loss over the steps near 0."""
    curves = chosen(records, "curve", model=arm, data=data)
    found = []
    for record in sorted(curves, key=lambda record: record["direction"]):
        steps, losses = np.array(record["steps"]), np.array(record["loss"], dtype=float)
        near = (np.abs(steps) <= NEAR + 1e-9) & (steps != 0)
        found.append(losses[near].mean() - losses[np.abs(steps).argmin()])
    return np.array(found)


def mean_rise(arm: str, data: str) -> Value:
    return lambda records: float(np.log(rises(records, arm, data).mean()))


def tilt(start: str, data: str) -> Value:
    """`tilt_of` the line from an arm to mini-batch SGD."""
    pair = f"{start} to {MINI_BATCH}"
    return lambda records: tilt_of(one(records, "interpolation", pair=pair), data)


def tilt_of(line: dict[str, Any], data: str) -> float:
    """How much more the loss rises half a length beyond the first model, post-local SGD's (l = -0.5
    over 0), than as far beyond the second, mini-batch SGD's (1.5 over 1).
    """
    at = dict(zip(line["positions"], line["data"][data]["loss"], strict=True))
    return (at[-0.5] - at[0.0]) - (at[1.5] - at[1.0])


def chance(arm: str, whose: str) -> Value:
    return lambda records: float(np.log(one(records, "round spread")[arm][whose]))


def minus(first: Value, second: Value) -> Value:
    return lambda records: first(records) - second(records)


def all_claims() -> list[Claim]:
    return [*_eigenvalues(), *_scale_free(), *_curves(), *_lines(), *_accuracy(), *_noise()]


def _eigenvalues() -> Iterator[Claim]:
    for data in SETS:
        yield Claim(
            f"λ max over phase 2, {data}: H = {MANY} below mini-batch",
            "fig. understanding (a), spectrum (a, b)",
            minus(phase_two(POST_LOCAL, data), phase_two(MINI_BATCH, data)),
            -1,
        )
        for few in LOCAL_STEPS[1:-1]:
            yield Claim(
                f"λ max over phase 2, {data}: H = {few} above H = {MANY}",
                "the same",
                minus(phase_two(f"H={few}", data), phase_two(POST_LOCAL, data)),
                1,
            )
        for count, name in ((1, "λ max"), (10, "ten largest eigenvalues")):
            yield Claim(
                f"{name} at the end, {data}: H = {MANY} below mini-batch",
                "spectrum (c, d)",
                minus(top(POST_LOCAL, data, count), top(MINI_BATCH, data, count)),
                -1,
            )
        yield Claim(
            f"λ max at the end, {data}: small batch below mini-batch",
            "section 5, after Keskar et al.",
            minus(top(SMALL, data, 1), top(MINI_BATCH, data, 1)),
            -1,
        )


def _scale_free() -> Iterator[Claim]:
    shown = (
        ("trace", "value", "trace of the Hessian"),
        ("sharpness", "times_norm", "λ max ‖w‖²"),
        ("sharpness", "filter_wise", "λ max by filter"),
        ("sharpness", "worst_rise", "worst rise in a ball"),
        ("sharpness", "filter_worst_rise", "worst rise in a ball by filter"),
    )
    for kind, key, name in shown:
        for data in SETS:
            one_arm, other = (logarithm(arm, data, kind, key) for arm in (POST_LOCAL, MINI_BATCH))
            text = f"{name}, {data}: H = {MANY} below mini-batch"
            yield Claim(text, "", minus(one_arm, other), -1, family=OURS)


def _curves() -> Iterator[Claim]:
    for data in SETS:
        for arm, name in ((POST_LOCAL, f"H = {MANY}"), (SCRATCH, f"H = {MANY} from scratch")):
            yield Claim(
                f"rise along ten directions, {data}: {name} below mini-batch",
                "fig. sharpness visualization",
                minus(mean_rise(arm, data), mean_rise(MINI_BATCH, data)),
                -1,
            )


def _lines() -> Iterator[Claim]:
    for start, name in ((POST_LOCAL, "resumed"), (SCRATCH, "from scratch")):
        for data in SETS:
            yield Claim(
                f"line to mini-batch, {data}: flatter on the side of H = {MANY}, {name}",
                "fig. understanding (b), interpolation",
                tilt(start, data),
                -1,
                "loss",
            )


def _accuracy() -> Iterator[Claim]:
    for arm in (*(f"H={h}" for h in LOCAL_STEPS[1:]), SCRATCH, SMALL):
        where = "table post-local, fig. post-local (a)"
        value = minus(accuracy(arm), accuracy(MINI_BATCH))
        text = f"test accuracy: {arm} above mini-batch"
        yield Claim(text, where, value, 1, "points", family="accuracy")


def _noise() -> Iterator[Claim]:
    base = chance(MINI_BATCH, "averaged")
    yield Claim(
        f"spread of a round of {MANY} steps: a worker's model above mini-batch's (K times)",
        "section 5",
        minus(chance(POST_LOCAL, "worker"), base),
        1,
        family="noise",
    )
    yield Claim(
        f"spread of a round of {MANY} steps: the averaged model above mini-batch's",
        "section 5, as it is read there",
        minus(chance(POST_LOCAL, "averaged"), base),
        1,
        family="noise",
    )
