"""The plane through three models in weight space (Garipov et al. 2018, section 3).

Letters: n all scalars of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from localsgd.errors import UserError
from localsgd.landscape.announce import Progress, silent
from localsgd.landscape.batches import Data
from localsgd.landscape.objective import Loss, Objective
from localsgd.landscape.parameters import EVERY, same_architecture
from localsgd.landscape.statistics import Statistics, estimated
from localsgd.landscape.surface import Surface, spread, surface


@dataclass(frozen=True)
class Frame:
    """Orthonormal axes [n] from the first of three points, and the points' coordinates."""

    origin: Tensor
    first: Tensor
    second: Tensor
    points: tuple[tuple[float, float], ...]

    def at(self, a: float, b: float) -> Tensor:
        """The weights [n] at coordinates (a, b)."""
        return self.origin + a * self.first + b * self.second

    def grid(self, points: int, margin: float) -> tuple[list[float], list[float]]:
        """Steps along both axes over the points' box, widened by `margin` of its size."""
        along, across = zip(*self.points, strict=True)
        return _widened(along, points, margin), _widened(across, points, margin)


@dataclass(frozen=True)
class Plane:
    """Scores over the plane, and the three models' positions on it, in weight-space distance."""

    surface: Surface
    points: tuple[tuple[float, float], ...]

    def record(self, **extra: Any) -> dict[str, Any]:
        points = [list(point) for point in self.points]
        about = {"kind": "plane", "points": points, "statistics": "estimated"}
        return {**self.surface.record(), **about, **extra}


def frame(weights: Sequence[Tensor]) -> Frame:
    """The frame of three points [n] that do not lie on one line."""
    if len(weights) != 3:
        raise UserError(f"a plane goes through 3 models, but {len(weights)} were given")
    origin, second, third = weights
    along, across = second - origin, third - origin
    width = along.norm()
    if float(width) == 0 or float(across.norm()) == 0:
        raise UserError("two of the three models have the same weights, so there is no one plane")
    u = along / width
    v = across - (across @ u) * u
    v = v - (v @ u) * u
    height = v.norm()
    if float(height) <= 1e-6 * float(across.norm()):
        raise UserError("the three models lie on one line, so there is no one plane through them")
    points = ((0.0, 0.0), (float(width), 0.0), (float(across @ u), float(height)))
    return Frame(origin, u, v / height, points)


def plane(
    models: Sequence[nn.Module],
    loss: Loss,
    data: Data,
    *,
    points: int = 15,
    margin: float = 0.25,
    estimate_on: Data | None = None,
    group: ProcessGroup | None = None,
    progress: Progress = silent,
) -> Plane:
    """Loss and accuracy on `data` over the plane through three models, as points x points values.

    Batch-norm statistics are estimated at every point on `estimate_on` (by default on `data`).
    """
    for other in models[1:]:
        same_architecture(models[0], other)
    weights = [Objective(model, loss, (), parameters=EVERY).weights for model in models]
    axes = frame(weights)
    objective = Objective(models[0], loss, data, parameters=EVERY, group=group)

    measured_on = data if estimate_on is None else estimate_on

    def statistics_at(point: Tensor) -> Statistics:
        named = objective.layout.named(point)
        return estimated(models[0], measured_on, weights=named, group=group)

    first, second = axes.grid(points, margin)
    scores = surface(
        objective,
        (axes.first, axes.second),
        first,
        second,
        statistics_at=statistics_at,
        progress=progress,
    )
    return Plane(scores, axes.points)


def _widened(values: Sequence[float], points: int, margin: float) -> list[float]:
    low, high = min(values), max(values)
    return spread(low - margin * (high - low), high + margin * (high - low), points)
