"""The paper's claims on the convex problem, each decided by code.

A claim is *reproduced* if it holds in every seed, *not reproduced* if it holds in none, and *not
decidable* with so few seeds otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from experiments.convex.designs import LOCAL_STEPS
from experiments.convex.tables import Table, cell, spread, worker_counts
from localsgd.tasks.logistic.rows import Floats

Verdict = Literal["reproduced", "not reproduced", "not decidable"]

# "A small number of workers": up to the 16 of the other figure; "very large": the end of the axis.
SMALL = (1, 2, 4, 8, 16)
LARGE = 1024


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it.

    Args:
        text: the claim.
        verdict: what the seeds say.
        evidence: in figures, with spread.
    """

    text: str
    verdict: Verdict
    evidence: str


def verdict(holds: Sequence[bool]) -> Verdict:
    """From whether it holds, by seed."""
    if all(holds):
        return "reproduced"
    return "not decidable" if any(holds) else "not reproduced"


def of_time(table: Table) -> list[Claim]:
    """fig:convex_time: (B, H) = (16, 16) against (64, 1) and (256, 1), K = 16."""
    return [_faster(table, batch=64, times=2), _faster(table, batch=256, times=3)]


def of_speedup(table: Table) -> list[Claim]:
    """fig:convex_speedup: H = 16 is best for few workers, and its advantage fades."""
    few = [workers for workers in worker_counts(table) if workers in SMALL]
    return [*(_best_at(table, workers) for workers in few), _fades(table)]


def _faster(table: Table, batch: int, times: float) -> Claim:
    ratio = table[cell(16, batch, 1)] / table[cell(16, 16, 16)]
    return Claim(
        f"(B, H) = (16, 16) is more than {times:g}x faster than ({batch}, 1)",
        verdict([bool(r > times) for r in ratio]),
        f"{spread(ratio)}x",
    )


def _best_at(table: Table, workers: int) -> Claim:
    by_steps = np.stack([table[cell(workers, 16, h)] for h in LOCAL_STEPS])
    best = [LOCAL_STEPS[i] for i in by_steps.argmin(axis=0)]
    mean = by_steps.mean(axis=1)
    order = ", ".join(f"{h}: {m / mean.min():.2f}" for h, m in zip(LOCAL_STEPS, mean, strict=True))
    return Claim(
        f"H = 16 has the best speed-up at K = {workers}",
        verdict([h == 16 for h in best]),
        f"best H by seed {', '.join(map(str, best))}; time relative to the best by H {order}",
    )


def advantage(table: Table, workers: int) -> Floats:
    """How many times faster H = 16 is than H = 1, by seed."""
    return table[cell(workers, 16, 1)] / table[cell(workers, 16, 16)]


def _fades(table: Table) -> Claim:
    first, last = advantage(table, SMALL[0]), advantage(table, LARGE)
    middle = advantage(table, SMALL[-1])
    return Claim(
        f"the advantage of H = 16 fades with K: it falls from K = 1 over K = 16 to K = {LARGE}",
        verdict([bool(a > b > c) for a, b, c in zip(first, middle, last, strict=True)]),
        f"T(H=1) / T(H=16): {spread(first)} at K = 1, {spread(middle)} at K = 16, "
        f"{spread(last)} at K = {LARGE}",
    )
