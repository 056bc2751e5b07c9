"""Collectives whose members are all in this process: a simulation, or blocks in a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.wire.collective import Pending


def sum_members(x: Tensor) -> Tensor:
    """Sums `x [g, m, n]` over the hosted members, in their order, into `x[:, 0]`."""
    total = x[:, 0]
    for member in range(1, x.shape[1]):
        total += x[:, member]
    return total


@dataclass(frozen=True)
class InProcess:
    """M members of each group, all hosted here (m = M)."""

    members: int = 1

    def sum(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(sum_members(x))

    def gather(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(x)

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(x.transpose(1, 2).contiguous())

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        received = torch.empty_like(x)
        received[:, list(to)] = x
        return Pending.done(received)
