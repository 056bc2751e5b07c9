"""The ordered mean: the same bits however the members are spread over processes.

Each member sends chunk j of its update to member j, who adds the chunks in the order of the
members; the sums are gathered.
As many bytes as a ring: (M - 1)/M of the update out and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localsgd.collective.seam import Collective, Pending
from localsgd.reduce.compressor import scale_dtype


@dataclass(frozen=True)
class OrderedMean:
    """mean_k of the updates, summed as ((x_1 + x_2) + x_3) + ... by the owner of each chunk.

    Weighted updates in half precision go to the owner as float32, who rounds their sum once, so
    that the mean of equal ones is theirs to the bit.
    """

    linear = True

    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        n, members = update.shape[-1], collective.members
        sent = update
        if weights is not None:
            sent = update.to(scale_dtype(update.dtype)).mul_(weights.unsqueeze(-1))
        padded = torch.nn.functional.pad(sent, (0, -n % members))
        received = collective.exchange(padded.unflatten(-1, (members, -1))).wait()
        total = received[:, :, 0].clone()  # [g, m, c]
        for source in range(1, members):
            total += received[:, :, source]
        if weights is None:
            total /= members
        total = total.to(update.dtype)

        def finish() -> Tensor:
            mean = collective.gather(total).wait().flatten(1)[:, :n]  # [g, n]
            update[:, 0] = mean
            return update[:, 0]

        return Pending(finish)

    def state(self) -> dict[str, Any]:
        return {}

    def load(self, state: dict[str, Any]) -> None:
        pass
