"""The exact mean: one sum on memory that already lies in place, then one division."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from localsgd.reduce.compressor import scale_dtype
from localsgd.reduce.ordered import OrderedMean
from localsgd.reduce.reducer import Reducer
from localsgd.wire.collective import Collective, Pending


@dataclass(frozen=True)
class ExactMean(Reducer):
    """mean_k of the updates, in place, in whatever order the wire sums.

    The mean of equal updates is theirs to the bit where M is a power of two, and to a rounding for
    other M. In half precision it is theirs for every M: a wire that sums half-precision numbers
    rounds after each addition, so they are averaged like ordered ones, with as many bytes.
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
