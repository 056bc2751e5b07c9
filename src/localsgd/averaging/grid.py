"""Which ranks a worker consists of, and which of them average with each other.

A worker is one rank, or several that hold shards of one model (FSDP, tensor parallelism) or stages
of it. The rank at one position of a worker averages with those at the same position of all others,
its peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localsgd.errors import UserError


@dataclass(frozen=True)
class Grid:
    """The ranks of K workers.

    Args:
        ranks: `ranks[p][k]` is the rank at position p of worker k.
    """

    ranks: tuple[tuple[int, ...], ...]

    @staticmethod
    def of_single_ranks(processes: int) -> Grid:
        """Each rank is a worker."""
        return Grid((tuple(range(processes)),))

    @staticmethod
    def of_peers(peers: Sequence[Sequence[int]]) -> Grid:
        """From the peers that each rank gives for itself, by rank.

        Raises:
            UserError: they contradict each other.
        """
        distinct = sorted(set(map(tuple, peers)))
        covered = sorted(rank for group in distinct for rank in group)
        own = all(rank in group for rank, group in enumerate(peers))
        if not own or covered != list(range(len(peers))) or len(set(map(len, distinct))) > 1:
            raise UserError(
                f"ranks don't agree on who averages with whom ({_shown(peers)}); make one mesh of "
                "all ranks, and give each LocalSGD its part topology=mesh[...] with the axes "
                "across workers"
            )
        return Grid(tuple(distinct))

    def position(self, rank: int) -> int:
        """The place p of this rank in its worker."""
        return next(p for p, peers in enumerate(self.ranks) if rank in peers)

    def peers(self, rank: int) -> tuple[int, ...]:
        """The ranks that average with this one, itself included, in the order of workers."""
        return self.ranks[self.position(rank)]

    def worker(self, rank: int) -> tuple[int, ...]:
        """The ranks of the worker that this one belongs to."""
        index = self.peers(rank).index(rank)
        return tuple(peers[index] for peers in self.ranks)

    @property
    def workers(self) -> list[tuple[int, ...]]:
        """The ranks of every worker."""
        return list(zip(*self.ranks, strict=True))


def _shown(peers: Sequence[Sequence[int]]) -> str:
    shown = ", ".join(f"rank {rank}: {list(group)}" for rank, group in enumerate(peers[:8]))
    return shown + (", ..." if len(peers) > 8 else "")


SINGLE = Grid.of_single_ranks(1)
"""One worker of one rank."""
