"""The exact mean: one sum in place, in the wire's order, then one division."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from localsgd.reduce.compressor import scale_dtype
from localsgd.reduce.ordered import OrderedMean
from localsgd.wire.collective import Collective, Pending


@dataclass(frozen=True)
class ExactMean:
    """mean_k of the updates, in place, in whatever order the wire sums.

    "Exact" means that nothing is compressed; the last bits depend on the order in which the wire
    sums. The mean of equal updates equals them to the bit if M is a power of two, and up to
    rounding for other M. In half precision it equals them for every M: a wire that sums
    half-precision numbers rounds after each addition, so `OrderedMean` averages them, with as many
    bytes.
    """

    linear = True

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        if scale_dtype(update.dtype) != update.dtype:
            return OrderedMean().reduce(update, weights, collective)
        if weights is not None:
            return collective.sum(update.mul_(weights.unsqueeze(-1)))
        if collective.members == 1:
            return Pending.done(update[:, 0])
        return collective.sum(update).then(lambda total: total.div_(collective.members))

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass
