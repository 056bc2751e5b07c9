"""The exact mean: one sum on memory that already lies in place, then one division."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from localsgd.collective.seam import Collective, Pending
from localsgd.reduce.compressor import scale_dtype


@dataclass(frozen=True)
class ExactMean:
    """mean_k of the updates, in place, in whatever order the wire sums.

    Weighted updates in half precision cross as float32 and are rounded once, at the end, so that
    the mean of equal ones is theirs to the bit.
    """

    linear = True

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        if weights is not None:
            wide = update.to(scale_dtype(update.dtype)).mul_(weights.unsqueeze(-1))
            pending = collective.sum(wide)
            if wide.dtype == update.dtype:
                return pending
            return pending.then(lambda mean: update[:, 0].copy_(mean))
        if collective.members == 1:
            return Pending.done(update[:, 0])
        return collective.sum(update).then(lambda total: total.div_(collective.members))

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass
