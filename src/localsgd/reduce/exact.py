"""The exact mean: one sum on memory that already lies in place, then one division."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from localsgd.collective.seam import Collective, Pending


@dataclass(frozen=True)
class ExactMean:
    """mean_k of the updates, in place, in whatever order the wire sums."""

    linear = True

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        if weights is not None:
            update.mul_(weights.unsqueeze(-1))
            return collective.sum(update)
        if collective.members == 1:
            return Pending.done(update[:, 0])
        return collective.sum(update).then(lambda total: total.div_(collective.members))

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass
