"""The straight line between two models, and whether they are linearly connected.

w(l) = (1 - l) first + l second. The paper has post-local SGD first (l = 0) and mini-batch SGD
second (l = 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from localsgd.errors import UserError
from localsgd.landscape.announce import Progress, silent
from localsgd.landscape.batches import Data
from localsgd.landscape.objective import Loss, Objective, Score
from localsgd.landscape.parameters import EVERY, same_architecture
from localsgd.landscape.statistics import Statistics, estimated, interpolated, kept
from localsgd.landscape.surface import columns


@dataclass(frozen=True)
class Barrier:
    """The largest rise of the loss over the line between its ends' values, and its position."""

    height: float
    position: float

    def connected(self, threshold: float) -> bool:
        """Whether the models are linearly connected up to `threshold`, in the height's unit."""
        return self.height <= threshold


@dataclass(frozen=True)
class Interpolation:
    """Scores on each data set at each position; `statistics` says how batch norm was treated."""

    positions: tuple[float, ...]
    scores: Mapping[str, tuple[Score, ...]]
    statistics: str

    def barrier(self, data: str, of: Literal["loss", "error"] = "loss") -> Barrier:
        """max over l in [0, 1] of v(l) - ((1 - l) v(0) + l v(1)), at the positions evaluated.

        v is the loss, or the error rate (Frankle et al. 2020 call nets connected below 0.02). The
        height is NaN where v is NaN at one of them: that connects nothing.
        """
        values = [_value(score, of) for score in self.scores[data]]
        start, end = (values[self._at(place)] for place in (0.0, 1.0))
        inside = [(x, v) for x, v in zip(self.positions, values, strict=True) if 0 <= x <= 1]
        heights = [(v - (1 - x) * start - x * end, x) for x, v in inside]
        return Barrier(*next((one for one in heights if math.isnan(one[0])), max(heights)))

    def _at(self, place: float) -> int:
        for index, position in enumerate(self.positions):
            if abs(position - place) < 1e-9:
                return index
        raise UserError(f"a barrier needs both ends, but position {place:g} was not evaluated")

    def record(self, **extra: Any) -> dict[str, Any]:
        data = {name: columns(scores) for name, scores in self.scores.items()}
        barriers = {}
        if {0.0, 1.0} <= set(self.positions):
            barriers = {name: self.barrier(name).height for name in self.scores}
        return {
            "kind": "interpolation",
            "positions": list(self.positions),
            "data": data,
            "barrier": barriers,
            "statistics": self.statistics,
            **extra,
        }


def interpolate(
    first: nn.Module,
    second: nn.Module,
    loss: Loss,
    data: Mapping[str, Data],
    positions: Sequence[float],
    *,
    statistics: Literal["estimated", "interpolated"] = "estimated",
    estimate_on: Data | None = None,
    group: ProcessGroup | None = None,
    progress: Progress = silent,
) -> Interpolation:
    """Loss and accuracy on the line between two models of one architecture.

    Args:
      data: data sets by name, as {"train": ..., "test": ...}.
      positions: values of l; below 0 and above 1 goes beyond the models.
      statistics: "estimated" measures batch-norm statistics at every position on `estimate_on`
        (by default the data called "train"); "interpolated" mixes the models' own, which gives
        each model's own loss at its end.
    """
    same_architecture(first, second)
    one = Objective(first, loss, (), parameters=EVERY)
    two = Objective(second, loss, (), parameters=EVERY)
    estimate_on = data.get("train") if estimate_on is None else estimate_on
    if statistics == "estimated" and estimate_on is None:
        raise UserError(
            f"batch-norm statistics are to be estimated, but of the data {', '.join(data)} none is "
            "called 'train'; give estimate_on=..., or statistics='interpolated'"
        )
    buffers = kept(first), kept(second)
    difference = two.weights - one.weights
    scores: dict[str, list[Score]] = {name: [] for name in data}
    for index, position in enumerate(positions):
        weights = one.weights + position * difference
        here = _statistics(statistics, one, weights, buffers, position, estimate_on, group)
        for name, pairs in data.items():
            there = Objective(first, loss, pairs, parameters=EVERY, statistics=here, group=group)
            scores[name].append(there.score(weights))
        progress("interpolation", index + 1, len(positions))
    frozen = {name: tuple(values) for name, values in scores.items()}
    return Interpolation(tuple(positions), frozen, statistics)


def _statistics(
    kind: str,
    one: Objective,
    weights: Tensor,
    buffers: tuple[Statistics, Statistics],
    position: float,
    estimate_on: Data | None,
    group: ProcessGroup | None,
) -> Statistics:
    if kind == "interpolated" or estimate_on is None:
        return interpolated(*buffers, position)
    return estimated(one.model, estimate_on, weights=one.layout.named(weights), group=group)


def _value(score: Score, of: str) -> float:
    if of == "loss":
        return score.loss
    if not math.isfinite(score.loss):
        return math.nan
    if score.accuracy is None:
        raise UserError("there is no error rate: the targets are not classes; ask for the loss")
    return 1 - score.accuracy
