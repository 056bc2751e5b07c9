"""The paper's claims on the convex problem, judged by the one rule of `experiments/claims.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.claims import OPEN, verdict
from experiments.convex.designs import LOCAL_STEPS
from experiments.convex.tables import Table, cell, spread, worker_counts
from experiments.logistic.rows import Floats
from experiments.study import State
from localsgd.basics.paired import Test, evidence, holm

# "A small number of workers": up to the 16 of the other figure; "very large": the end of the axis.
SMALL = (1, 2, 4, 8, 16)
LARGE = 1024
LEAST = 0.1
"""The smallest difference of ratios of times that is of interest."""


@dataclass(frozen=True)
class Claim:
    """A claim and its verdict.

    Args:
        text: the claim.
        differences: by seed; above 0 if it holds.
        evidence: in figures, with spread.
        verdict: by the rule, once all claims of a figure are there.
    """

    text: str
    differences: Floats
    evidence: str
    verdict: State = OPEN

    @property
    def test(self) -> Test:
        return Test(tuple(self.differences.tolist()))


def judged(found: Sequence[Claim]) -> list[Claim]:
    """All claims of a figure, corrected for their number."""
    values = holm([claim.test.p for claim in found])
    done = []
    for claim, p in zip(found, values, strict=True):
        numbers = evidence(claim.test.interval), f"p {p:.2g}", f"sign flips {claim.test.flips:.2g}"
        said = "; ".join((claim.evidence, f"difference {numbers[0]}", *numbers[1:]))
        done.append(replace(claim, verdict=verdict(claim.test, p), evidence=said))
    return done


def of_time(table: Table) -> list[Claim]:
    """fig:convex_time: (B, H) = (16, 16) against (64, 1) and (256, 1), K = 16."""
    return judged([_faster(table, batch=64, times=2), _faster(table, batch=256, times=3)])


def of_speedup(table: Table) -> list[Claim]:
    """fig:convex_speedup: H = 16 is best for few workers, and its advantage fades."""
    few = [workers for workers in worker_counts(table) if workers in SMALL]
    return judged([*(_best_at(table, workers) for workers in few), _fades(table)])


def _faster(table: Table, batch: int, times: float) -> Claim:
    ratio = table[cell(16, batch, 1)] / table[cell(16, 16, 16)]
    return Claim(
        f"(B, H) = (16, 16) is more than {times:g}x faster than ({batch}, 1)",
        ratio - times,
        f"{spread(ratio)}x",
    )


def _best_at(table: Table, workers: int) -> Claim:
    by_steps = np.stack([table[cell(workers, 16, h)] for h in LOCAL_STEPS])
    best = [LOCAL_STEPS[i] for i in by_steps.argmin(axis=0)]
    mean = by_steps.mean(axis=1)
    order = ", ".join(f"{h}: {m / mean.min():.2f}" for h, m in zip(LOCAL_STEPS, mean, strict=True))
    return Claim(
        f"H = 16 has the best speed-up at K = {workers}",
        by_steps[:-1].min(axis=0) / by_steps[-1] - 1,
        f"best H by seed {', '.join(map(str, best))}; time relative to the best by H {order}",
    )


def advantage(table: Table, workers: int) -> Floats:
    """How many times faster H = 16 is than H = 1, by seed."""
    return table[cell(workers, 16, 1)] / table[cell(workers, 16, 16)]


def _fades(table: Table) -> Claim:
    first, last = advantage(table, SMALL[0]), advantage(table, LARGE)
    middle = advantage(table, SMALL[-1])
    return Claim(
        f"the advantage of H = 16 fades with K: it is smaller at K = {LARGE} than at K = 1",
        first - last,
        f"T(H=1) / T(H=16): {spread(first)} at K = 1, {spread(middle)} at K = 16, "
        f"{spread(last)} at K = {LARGE}",
    )
