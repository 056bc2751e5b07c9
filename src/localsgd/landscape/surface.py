"""Loss and accuracy along directions from a model's weights: curves, surfaces, planes.

Letters: n chosen scalars.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from torch import Tensor

from localsgd.errors import UserError
from localsgd.landscape.announce import Progress, silent
from localsgd.landscape.objective import Objective, Score
from localsgd.landscape.statistics import Statistics

StatisticsAt: TypeAlias = Callable[[Tensor], Statistics]


@dataclass(frozen=True)
class Curve:
    """Scores at w + step * direction for each step."""

    steps: tuple[float, ...]
    scores: tuple[Score, ...]

    @property
    def losses(self) -> list[float]:
        return [score.loss for score in self.scores]

    def record(self, **extra: Any) -> dict[str, Any]:
        return {"kind": "curve", "steps": list(self.steps), **columns(self.scores), **extra}


@dataclass(frozen=True)
class Surface:
    """Scores at w + a * first + b * second; rows go with b, columns with a."""

    first: tuple[float, ...]
    second: tuple[float, ...]
    scores: tuple[tuple[Score, ...], ...]

    @property
    def losses(self) -> list[list[float]]:
        return [[score.loss for score in row] for row in self.scores]

    def record(self, **extra: Any) -> dict[str, Any]:
        rows = [columns(row) for row in self.scores]
        table = {name: [row[name] for row in rows] for name in ("loss", "accuracy")}
        axes = {"first": list(self.first), "second": list(self.second)}
        return {"kind": "surface", **axes, **table, **extra}


def curve(
    objective: Objective,
    direction: Tensor,
    steps: Sequence[float],
    *,
    statistics_at: StatisticsAt | None = None,
    progress: Progress = silent,
) -> Curve:
    """Scores along one direction [n].

    statistics_at: weights [n] -> batch-norm statistics there; by default the objective's own at
    every point.
    """
    points = [objective.weights + step * direction for step in steps]
    scores = _scores(objective, points, len(points), statistics_at, "curve", progress)
    return Curve(tuple(steps), tuple(scores))


def surface(
    objective: Objective,
    directions: tuple[Tensor, Tensor],
    first: Sequence[float],
    second: Sequence[float] | None = None,
    *,
    statistics_at: StatisticsAt | None = None,
    progress: Progress = silent,
) -> Surface:
    """Scores over a grid of two directions [n] (`second` defaults to the steps of `first`)."""
    second = first if second is None else second
    along, across = directions
    if not len(first) or not len(second):
        raise UserError("a surface needs at least one step in each direction")
    points = (objective.weights + a * along + b * across for b in second for a in first)
    total = len(first) * len(second)
    scores = _scores(objective, points, total, statistics_at, "surface", progress)
    width = len(first)
    rows = tuple(tuple(scores[i : i + width]) for i in range(0, total, width))
    return Surface(tuple(first), tuple(second), rows)


def spread(low: float, high: float, points: int) -> list[float]:
    """`points` values from low to high, both included."""
    return [low + (high - low) * i / max(1, points - 1) for i in range(points)]


def columns(scores: Iterable[Score]) -> dict[str, list[float | None]]:
    """Losses and accuracies as lists; a loss that isn't finite is None (JSON has no inf)."""
    rows = [asdict(score) for score in scores]
    losses = [row["loss"] if math.isfinite(row["loss"]) else None for row in rows]
    return {"loss": losses, "accuracy": [row["accuracy"] for row in rows]}


def _scores(
    objective: Objective,
    points: Iterable[Tensor],
    total: int,
    statistics_at: StatisticsAt | None,
    what: str,
    progress: Progress,
) -> list[Score]:
    scores = []
    for point in points:
        statistics = statistics_at(point) if statistics_at else None
        scores.append(objective.score(point, statistics))
        progress(what, len(scores), total)
    return scores
