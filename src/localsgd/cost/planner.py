"""Finds the H that hides a slow network, from a model of the time per step.

    seconds per step  =  c  +  sum_l (A_l + W_l) / (H_1 ... H_l)

c is the compute time of a local step, A_l the time of a sync of level l, and W_l the time that its
members wait for the slowest of them after H_1 ... H_l steps. A sync of level l includes syncs of
all levels inside. If step times are independent, with mean c and standard deviation s c, the sum
over h steps is close to normal, and the slowest of M is late by

    W = s c sqrt(h) E_M,     E_M = expected largest of M standard normals (Blom 1958's quantile).

All of it is modelled, so M may be 100,000. Measurements are given as numbers.

Shapes: M members of a level · n scalars of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from localsgd.basics.units import plural
from localsgd.cost.allreduce import ALGORITHMS, Link, gather, ring
from localsgd.errors import UserError, unknown_name
from localsgd.reduce.compressed import gathers

BITS = {"dense": 32.0, "int8": 8.0 + 32 / 1024, "sign": 1.0}
"""Bits per scalar that are sent, scales included."""

BUDGET = 0.05
MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class Stage:
    """One level: its members and the kind of link between them.

    Args:
        members: M.
        link: between any two of them.
        algorithm: of a dense all-reduce: ring, tree or recursive halving.
    """

    members: int
    link: Link
    algorithm: str = "ring"

    def __post_init__(self) -> None:
        if self.members < 1:
            raise UserError(
                f"a level of {plural(self.members, 'member')} averages nothing; give 1 or more"
            )
        if self.algorithm not in ALGORITHMS:
            raise unknown_name("all-reduce", self.algorithm, ALGORITHMS)

    def sync_seconds(self, scalars: int, way: str) -> float:
        """The time A of a sync of n scalars, sent `dense`, as `int8` or as `sign`.

        Compressed models are gathered if `CompressedMean` would gather them; its two phases have a
        ring's messages and bytes.
        """
        if way not in BITS:
            raise unknown_name("way to send a model", way, BITS)
        size = scalars * BITS[way] / 8
        algorithm = ALGORITHMS[self.algorithm]
        if way != "dense":
            algorithm = gather if gathers(self.members, size) else ring
        return algorithm(self.members, size).seconds(self.link)


@dataclass(frozen=True)
class Plan:
    """A cluster and a model.

    Args:
        step_seconds: c, the compute time of a local step.
        scalars: n.
        stages: levels, innermost first.
        spread: s, the standard deviation of a step's compute time as a fraction of c.
        coding_seconds: time to encode and decode a compressed model, at each sync of the outermost
            level.
    """

    step_seconds: float
    scalars: int
    stages: tuple[Stage, ...]
    spread: float = 0.0
    coding_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.step_seconds < math.inf:
            raise UserError(f"a step can't take {self.step_seconds:g} seconds; give a number > 0")
        if self.scalars < 1:
            raise UserError(f"a model can't have {self.scalars} scalars; give 1 or more")
        if not self.stages:
            raise UserError("a plan needs a level that averages; give one")
        for name in ("spread", "coding_seconds"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise UserError(f"{name} = {value:g} is out of range; give a number >= 0")

    @property
    def workers(self) -> int:
        return math.prod(stage.members for stage in self.stages)

    def waited_seconds(self, local_steps: Sequence[int], way: str = "dense") -> float:
        """Seconds of waiting per step.

        Args:
            local_steps: H of each level, innermost first.
            way: how models are sent at the outermost level; inside it they are dense.
        """
        if len(local_steps) != len(self.stages) or min(local_steps) < 1:
            raise UserError(
                f"local steps {list(local_steps)} for {plural(len(self.stages), 'level')}; give a "
                "number >= 1 for each, innermost first"
            )
        period, waited = 1, 0.0
        for level, (stage, steps) in enumerate(zip(self.stages, local_steps, strict=True)):
            period *= steps
            outermost = level == len(self.stages) - 1
            seconds = stage.sync_seconds(self.scalars, way if outermost else "dense")
            if outermost and way != "dense":
                seconds += self.coding_seconds
            waited += (seconds + self._late(stage.members, period)) / period
        return waited

    def seconds(self, local_steps: Sequence[int], way: str = "dense") -> float:
        """Seconds per step, waiting included."""
        return self.step_seconds + self.waited_seconds(local_steps, way)

    def waiting_fraction(self, local_steps: Sequence[int], way: str = "dense") -> float:
        """The fraction of a step's time that is spent waiting."""
        return self.waited_seconds(local_steps, way) / self.seconds(local_steps, way)

    def smallest(
        self, budget: float = BUDGET, way: str = "dense", inner: Sequence[int] = ()
    ) -> int | None:
        """The smallest H of the outermost level at which waiting stays under `budget`.

        Args:
            budget: a fraction of a step's time, between 0 and 1.
            way: how models are sent there.
            inner: H of the levels inside, innermost first.

        Returns:
            `None` if no H is large enough, since the levels inside wait too long.
        """
        if not 0 < budget < 1:
            raise UserError(f"budget = {budget:g} is no fraction of the time; give one in (0, 1)")

        def holds(steps: int) -> bool:
            return self.waiting_fraction([*inner, steps], way) < budget

        if not holds(MOST_STEPS):
            return None
        enough = 1
        while not holds(enough):
            enough *= 2
        least, most = enough // 2, enough  # Waiting falls as H grows: more than `least` are needed.
        while most - least > 1:
            middle = (least + most) // 2
            least, most = (least, middle) if holds(middle) else (middle, most)
        return most

    def _late(self, members: int, steps: int) -> float:
        return self.spread * self.step_seconds * math.sqrt(steps) * largest_of(members)


def largest_of(count: int) -> float:
    """The expected largest of `count` standard normals, by Blom's quantile; 0 for one.

    Within 0.03 of the exact value for every count (3: 0.846 exactly).

    Examples:
        >>> round(largest_of(3), 2)
        0.87
    """
    if count == 1:
        return 0.0
    return -NormalDist().inv_cdf(0.625 / (count + 0.25))
