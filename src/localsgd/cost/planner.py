"""Which H hides a slow network: time per step against H, modelled from a step's compute and the
links.

    seconds a step  =  c  +  sum_l (A_l + W_l) / (H_1 ... H_l)

c is the compute of a local step, A_l a sync of level l, and W_l what its members wait for the
slowest of them after H_1 ... H_l steps. The levels within average at a sync of level l too, as
here they do. For step times that are independent, with mean c and standard deviation s c, the sum
over h steps is close to normal, and the slowest of M is late by

    W = s c sqrt(h) E_M,     E_M = expected largest of M standard normals (Blom 1958's quantile).

All of it is a model on paper: M may be 100,000. What is measured goes in as numbers.

Shapes: M members of a level · n scalars of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from localsgd.cost.allreduce import ALGORITHMS, Link, gather, ring
from localsgd.errors import UserError, unknown_name
from localsgd.reduce.compressed import gathers

BITS = {"dense": 32.0, "int8": 8.0 + 32 / 1024, "sign": 1.0}
"""A scalar's on the wire, scales included where there is one for so many."""

BUDGET = 0.05
MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class Stage:
    """One level: so many members behind one kind of link.

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
            raise UserError(f"a level of {self.members} members averages nothing; give 1 or more")
        if self.algorithm not in ALGORITHMS:
            raise unknown_name("all-reduce", self.algorithm, ALGORITHMS)

    def sync_seconds(self, scalars: int, way: str) -> float:
        """A: of n scalars, `dense`, `int8` or `sign`.

        Compressed models are gathered where that is what `CompressedMean` does; its two phases take
        a ring's messages and bytes.
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
        step_seconds: c, compute of a local step.
        scalars: n.
        stages: levels, innermost first.
        spread: s, standard deviation of a step's compute as a share of c; 0 without stragglers.
        coding_seconds: encoding and decoding of a compressed model, at each sync of the
            outermost level.
    """

    step_seconds: float
    scalars: int
    stages: tuple[Stage, ...]
    spread: float = 0.0
    coding_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.step_seconds < math.inf:
            raise UserError(f"a step of {self.step_seconds:g} seconds; give a number > 0")
        if self.scalars < 1:
            raise UserError(f"a model of {self.scalars} scalars; give 1 or more")
        if not self.stages:
            raise UserError("a plan needs a level that averages; give one")
        for name in ("spread", "coding_seconds"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} = {getattr(self, name):g}; give a number >= 0")

    @property
    def workers(self) -> int:
        return math.prod(stage.members for stage in self.stages)

    def waited_seconds(self, local_steps: Sequence[int], way: str = "dense") -> float:
        """For a step, beyond its compute.

        Args:
            local_steps: H of each level, innermost first.
            way: how models travel at the outermost level; those within it are dense.
        """
        if len(local_steps) != len(self.stages) or min(local_steps) < 1:
            raise UserError(
                f"local steps {list(local_steps)} for {len(self.stages)} levels; give a number "
                ">= 1 for each, innermost first"
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
        """A step's, waiting included."""
        return self.step_seconds + self.waited_seconds(local_steps, way)

    def waiting_fraction(self, local_steps: Sequence[int], way: str = "dense") -> float:
        """Of a step's time."""
        return self.waited_seconds(local_steps, way) / self.seconds(local_steps, way)

    def smallest(
        self, budget: float = BUDGET, way: str = "dense", inner: Sequence[int] = ()
    ) -> int | None:
        """The smallest H of the outermost level at which waiting stays under `budget`.

        Args:
            budget: of a step's time, between 0 and 1.
            way: how models travel there.
            inner: H of the levels within, innermost first.

        Returns:
            `None` where no H does it, as the levels within wait too long.
        """
        if not 0 < budget < 1:
            raise UserError(f"a share of {budget:g} of the time; give one between 0 and 1")

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
    """Expected largest of so many standard normals, by Blom's quantile; 0 for one.

    Within 0.03 of the exact value for every count (3: 0.846 exactly).

    Examples:
        >>> round(largest_of(3), 2)
        0.87
    """
    if count == 1:
        return 0.0
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))
