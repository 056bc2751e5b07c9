"""f at many points, and a proof, at the price of a dot product, that most lie above a target.

A run of the study ends at the first round where f of its model, or of its averaged model, is at
most a target. To find that round, f would have to be known at every round, and it costs as much as
n gradients. But f is convex: every point v where it was once evaluated gives a plane that lies
below it everywhere,

    F(w) >= F(v) + grad F(v).(w - v),        f(w) = F(w) + lambda/2 |w|^2,

F being the loss without the regulariser. Where the highest of the planes known so far, plus the
regulariser (which is exact), is above the target, so is f: no evaluation needed, and nothing
approximated. All other points are evaluated, and their planes join the pool. On w8a a few dozen
evaluations decide a hundred thousand points.

Planes are from J. E. Kelley, The cutting-plane method for solving convex programs, 1960.

d: features · p: points · m: planes in the pool
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from experiments.logistic import Logistic
from experiments.logistic.rows import Floats
from localsgd.errors import UserError

# Far above the rounding of a bound (1e-14), far below any difference that the study resolves.
_MARGIN = 1e-10
_AT_ONCE = 4


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)), by torch's vectorised exponential."""
    return torch.sigmoid(torch.from_numpy(x)).numpy()


def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)), likewise."""
    x_ = torch.from_numpy(x)
    return torch.logaddexp(x_, torch.zeros((), dtype=x_.dtype)).numpy()


@dataclass
class Evaluations:
    """The savings by certificates: the number of `points`, and how many were `evaluated`."""

    points: int = 0
    evaluated: int = 0


class Objective:
    """f of a problem at the columns of a matrix, and which of them are at or below a target.

    Args:
        problem: what is minimised.
        pool: planes kept; the oldest makes room.
    """

    def __init__(self, problem: Logistic, pool: int = 256) -> None:
        self._rows, counts = problem.merged
        self._shares = counts / problem.examples
        self._columns = self._rows.T.tocsr()
        self._regularisation = problem.regularisation
        self._slopes = np.zeros((pool, problem.features))
        self._offsets = np.full(pool, -np.inf)
        self._next = 0
        self.evaluations = Evaluations()

    def values(self, points: Floats) -> Floats:
        """f at the columns of `points` [d, p], [p]."""
        return self._loss(points)[0] + self._penalty(points)

    def lower_bounds(self, points: Floats) -> Floats:
        """What the planes known so far say that f at least is, [p]; -inf without any."""
        planes = self._slopes @ points + self._offsets[:, None]
        return planes.max(axis=0) + self._penalty(points)

    def values_at_most(self, targets: Floats, points: Floats) -> Floats:
        """f at the points where f <= its target [p], infinity at the others, [p]. Exact."""
        values = np.full(points.shape[1], np.inf)
        bounds = self.lower_bounds(points)
        open_ = np.flatnonzero(bounds <= targets + _MARGIN)
        while len(open_):
            # The lowest first: their planes often decide the rest.
            nearest = open_[np.argsort(bounds[open_], kind="stable")][:_AT_ONCE]
            values[nearest] = self._learn(points[:, nearest])
            open_ = np.setdiff1d(open_, nearest)
            bounds[open_] = self.lower_bounds(points[:, open_])
            open_ = open_[bounds[open_] <= targets[open_] + _MARGIN]
        self.evaluations.points += points.shape[1]
        return np.where(values <= targets, values, np.inf)

    def _learn(self, points: Floats) -> Floats:
        """f at `points`, whose planes join the pool."""
        loss, margins = self._loss(points)
        slopes = self._columns @ (self._shares[:, None] * sigmoid(margins))
        for index in range(points.shape[1]):
            slope = slopes[:, index]
            self._slopes[self._next] = slope
            self._offsets[self._next] = loss[index] - slope @ points[:, index]
            self._next = (self._next + 1) % len(self._offsets)
        self.evaluations.evaluated += points.shape[1]
        return loss + self._penalty(points)

    def _loss(self, points: Floats) -> tuple[Floats, Floats]:
        """F at the points, [p], and c_i.w, [distinct rows, p]."""
        margins = self._rows @ points
        return self._shares @ softplus(margins), margins

    def _penalty(self, points: Floats) -> Floats:
        return self._regularisation / 2 * np.einsum("dp,dp->p", points, points)


def check_targets(targets: Sequence[float], minimum: float) -> None:
    """Refuses a target that no run can reach."""
    for target in targets:
        if target <= minimum:
            raise UserError(
                f"target f <= {target:.15g} is not above the minimum f* = {minimum:.15g}, "
                "no run can reach it; "
                "give f* + epsilon with epsilon > 0"
            )
