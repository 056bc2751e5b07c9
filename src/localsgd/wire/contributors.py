"""A collective over workers that come and go: some of them have nothing to average yet.

A worker that has just joined, or was left behind, is a guest of its first sync. It makes the same
calls as the others, so that nobody waits for it, and what it gives is dropped: members are those
who contribute. What a reducer computes on a guest is of no use; `Peers.share` gives it the result.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from localsgd.wire.collective import Pending
from localsgd.wire.engine import Peers


class Contributors:
    """One group (g = 1) with one member in each worker that contributes (m = 1)."""

    def __init__(self) -> None:
        self._peers: Peers | None = None
        self.ranks: tuple[int, ...] = (0,)

    def join(self, peers: Peers, ranks: Sequence[int]) -> None:
        """The members are the workers of these ranks, until the next call."""
        self._peers, self.ranks = peers, tuple(ranks)

    @property
    def peers(self) -> Peers:
        assert self._peers is not None, "nobody has met yet"
        return self._peers

    @property
    def members(self) -> int:
        return len(self.ranks)

    @property
    def guest(self) -> bool:
        return self.peers.rank not in self.ranks

    def sum(self, x: Tensor) -> Pending[Tensor]:
        if self.guest:
            x.zero_()
        total = x[:, 0]
        self.peers.sum(total)
        return Pending.done(total)

    def gather(self, x: Tensor) -> Pending[Tensor]:
        own = x.contiguous().view(-1)
        found = own.new_zeros((self.members, own.numel()))
        sources = {rank: found[index] for index, rank in enumerate(self.ranks)}
        if (mine := sources.pop(self.peers.rank, None)) is not None:
            mine.copy_(own)
        others = [] if self.guest else [r for r in range(self.peers.size) if r != self.peers.rank]
        self.peers.swap(dict.fromkeys(others, own), sources)
        return Pending.done(found.unsqueeze(0))

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        received = torch.zeros_like(x, memory_format=torch.contiguous_format)  # [1, 1, M, c]
        if not self.guest:
            places = {rank: index for index, rank in enumerate(self.ranks)}
            own = places.pop(self.peers.rank)
            received[:, :, own] = x[:, :, own]
            self.peers.swap(
                {rank: x[0, 0, place].contiguous() for rank, place in places.items()},
                {rank: received[0, 0, place] for rank, place in places.items()},
            )
        return Pending.done(received)
