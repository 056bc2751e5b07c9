"""Speed-up of a run, from the speed-ups of its phases or from the price of a sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from localsgd.basics.units import plural
from localsgd.errors import UserError


def of_run(phases: Sequence[tuple[float, float]]) -> float:
    """Speed-up of a run whose phases have different speed-ups: 1 / sum_i share_i / S_i.

    Post-local SGD that turns local half-way: `of_run([(0.5, S(1)), (0.5, S(H))])`.

    Args:
        phases: (share of the work, its speed-up); the shares make 1.
    """
    total = sum(share for share, _ in phases)
    if abs(total - 1) > 1e-9:
        raise UserError(f"the shares of the phases sum to {total:g}; they must sum to 1")
    if min(speedup for _, speedup in phases) <= 0:
        raise UserError("a speed-up can't be 0 or less; give numbers > 0")
    return 1 / sum(share / speedup for share, speedup in phases)


def of_local_steps(workers: int, price: float, local_steps: int) -> float:
    """S(H) = K / (1 + price / H), a sync costing `price` local steps; below K for every H."""
    return workers / (1 + price / local_steps)


def price_from(workers: int, speedup: float) -> float:
    """The price at which H = 1 has this speed-up: K / S(1) - 1."""
    if not 0 < speedup <= workers:
        raise UserError(
            f"a speed-up of {speedup:g} on {plural(workers, 'worker')} is beyond this model; give "
            f"a number above 0 and up to {workers}"
        )
    return workers / speedup - 1


@dataclass(frozen=True)
class Clock:
    """Time of a run over H: T(H) = compute + syncing / H.

    Args:
        compute: time of all local steps.
        syncing: time of all syncs with H = 1. In the same unit.
    """

    compute: float
    syncing: float

    def time(self, local_steps: int) -> float:
        """T(H)."""
        return self.compute + self.syncing / local_steps

    def errors(self, measured: dict[int, float]) -> dict[int, float]:
        """The relative error of T(H) to the measured time, by H."""
        return {h: self.time(h) / time - 1 for h, time in measured.items()}

    @staticmethod
    def fit(measured: dict[int, float]) -> Clock:
        """Least squares over times by H.

        Raises:
            UserError: fewer than two H.
        """
        if len(measured) < 2:
            raise UserError(f"times of {len(measured)} H give no line; give two or more")
        steps = np.array(list(measured), dtype=np.float64)
        design = np.stack([np.ones_like(steps), 1 / steps], axis=1)
        (compute, syncing), *_ = np.linalg.lstsq(
            design, np.array(list(measured.values())), rcond=None
        )
        return Clock(float(compute), float(syncing))
