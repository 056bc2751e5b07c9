"""Places a topology on processes, and makes the process groups that each level needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeAlias

import torch.distributed as dist

from localsgd.averaging.delay import Fragmented
from localsgd.averaging.gossip import Gossip
from localsgd.averaging.grid import SINGLE, Grid
from localsgd.averaging.level import Blocks, Level
from localsgd.averaging.topology import Topology, check_hosting
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.wire import (
    Collective,
    InProcess,
    Leaders,
    ProcessGroup,
    Sliced,
)
from localsgd.wire.ahead import Ahead
from localsgd.wire.latency import WALL, Clock, WithLatency
from localsgd.wire.presence import Presence

AnyLevel: TypeAlias = Level | Blocks | Fragmented | Gossip


@dataclass(frozen=True)
class HostedLevel:
    """One level as one process sees it.

    Args:
        hosted: m, members of a group that are hosted here.
        groups: g, groups of the level that are hosted here.
        collective: joins a group's members.
    """

    groups: int
    hosted: int
    collective: Collective


@dataclass(frozen=True)
class Placement:
    """A topology placed on processes: worker k is in process k // w.

    With workers of several ranks each position in a worker has such a placement of its own.

    Args:
        topology: the blocks.
        rank: the index of this process among those that it averages with.
        hosted: w, the workers that each process hosts.
        hosted_levels: one for each level, innermost first; an innermost level of unequal blocks has
            one for each block.
        world: joins all K workers, independently of the levels.
        unequal: the blocks hosted here as (first hosted row, rows, block's index), if blocks
            differ.
        grid: the ranks of all workers.
        process: the rank of this process in `torch.distributed`.
        worker: joins the ranks of this worker; `None` if it is a single one.
        ranks: joins all ranks of all workers, if these have several.
    """

    topology: Topology
    rank: int
    hosted: int
    hosted_levels: tuple[HostedLevel, ...]
    world: Collective
    unequal: tuple[tuple[int, int, int], ...] = ()
    grid: Grid = SINGLE
    process: int = 0
    worker: ProcessGroup | None = None
    ranks: ProcessGroup | None = None

    @property
    def peers(self) -> Sequence[int]:
        """The ranks in `torch.distributed` of the processes that average with each other."""
        return self.grid.peers(self.process)

    @property
    def everyone(self) -> Collective:
        """Joins all ranks: all workers, each as often as it has ranks."""
        return self.ranks or self.world

    @property
    def workers(self) -> range:
        """The workers that this process hosts."""
        return range(self.rank * self.hosted, (self.rank + 1) * self.hosted)

    def located(
        self, levels: Sequence[AnyLevel]
    ) -> Iterator[tuple[Level | Fragmented | Gossip, list[int], list[list[int]]]]:
        """Each level with the first worker of its groups `[g]` and of their members `[g][m]`.

        Only groups and members hosted here are listed; unequal blocks come one by one.
        """
        if self.topology.unequal:
            yield from self._located_unequal(levels)
            return
        base, inside = self.workers.start, 1
        for level, hosted, size in zip(
            levels, self.hosted_levels, self.topology.sizes, strict=True
        ):
            whole = inside * size
            groups = [base // whole * whole + group * whole for group in range(hosted.groups)]
            start = max(base // inside * inside, groups[0])
            members = [
                [start + group * whole + member * inside for member in range(hosted.hosted)]
                for group in range(hosted.groups)
            ]
            assert not isinstance(level, Blocks)
            yield level, groups, members
            inside = whole

    def _located_unequal(
        self, levels: Sequence[AnyLevel]
    ) -> Iterator[tuple[Level | Fragmented | Gossip, list[int], list[list[int]]]]:
        blocks, world = levels
        assert isinstance(blocks, Blocks)
        assert not isinstance(world, Blocks)
        sizes = self.topology.unequal
        firsts = [sum(sizes[:index]) for _, _, index in self.unequal]
        for level, first, (start, rows, _) in zip(blocks.levels, firsts, self.unequal, strict=True):
            members = range(self.workers.start + start, self.workers.start + start + rows)
            yield level, [first], [list(members)]
        yield world, [0], [firsts]


def row_multiple(workers: int) -> int:
    """The number of scalars whose multiple a row's length is.

    Slices and chunks of a row are then whole bytes of signs.
    """
    return 8 * max(2, workers)


def placement_of(
    topology: Topology,
    timeout: timedelta | None = None,
    presence: Presence | None = None,
    ahead: bool = False,
    grid: Grid | None = None,
) -> Placement:
    """Places `topology` on the processes of `torch.distributed`, or on this one without it.

    Every process must call this, with the same topology and grid, since it makes process groups.

    Args:
        timeout: of the collectives; it must be longer than one process may be behind another.
        presence: checks on waits that take long, and keeps the groups, which end with it.
        ahead: whether the second stage of a sync between blocks runs in the background.
        grid: the ranks of all workers, if some have several.
    """
    total, process = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    grid = grid or Grid.of_single_ranks(total)
    groups = _Groups(grid, process, timeout, presence, ahead)
    processes, rank = groups.processes, groups.rank
    check_hosting(topology, processes)
    hosted = topology.workers // processes
    world = groups.spanning(processes, hosted=hosted) if processes > 1 else InProcess(hosted)
    several = len(grid.ranks) > 1
    worker = groups.of_ranks(grid.workers) if several else None
    ranks = groups.of_ranks([range(total)]) if several else None
    if topology.unequal:
        hosted_levels, blocks = _unequal_levels(topology, groups)
    else:
        hosted_levels, blocks = _equal_levels(topology, groups, hosted), ()
    return Placement(
        topology, rank, hosted, hosted_levels, world, blocks, grid, process, worker, ranks
    )


class _Groups:
    """Makes process groups, all in the same order on every process, and finds its own.

    Processes are counted among those that average with each other, unless they are called ranks.
    """

    def __init__(
        self,
        grid: Grid,
        process: int,
        timeout: timedelta | None,
        presence: Presence | None,
        ahead: bool,
    ) -> None:
        peers = grid.peers(process)
        self.processes = len(peers)
        self.rank = peers.index(process)
        self._grid = grid
        self._process = process
        self._timeout = timeout
        self._presence = presence
        self._ahead = ahead
        self._made: dict[tuple[bool, tuple[int, ...]], object] = {}
        if presence is not None:
            presence.owns(self._made.values())

    def own(
        self, groups: Sequence[Sequence[int]], hosted: int = 1, apart: bool = False
    ) -> ProcessGroup:
        mine = self.own_or_none(groups, hosted, apart)
        if mine is None:
            raise AssertionError(f"rank {self.rank} is in none of {groups}")
        return mine

    def own_or_none(
        self, groups: Sequence[Sequence[int]], hosted: int = 1, apart: bool = False
    ) -> ProcessGroup | None:
        """The group with this rank, if any. Equal ranks share a group, unless one is `apart`."""
        everywhere = [[peers[i] for i in group] for peers in self._grid.ranks for group in groups]
        mine = self._made_of_ranks(everywhere, apart)
        return None if mine is None else ProcessGroup(mine, hosted, self._presence)

    def of_ranks(self, groups: Sequence[Sequence[int]]) -> ProcessGroup:
        """The group with this process, of groups that are given by rank."""
        mine = self._made_of_ranks(groups)
        assert mine is not None
        return ProcessGroup(mine, presence=self._presence)

    def _made_of_ranks(
        self, groups: Sequence[Sequence[int]], apart: bool = False
    ) -> dist.ProcessGroup | None:
        mine = None
        for ranks in map(tuple, groups):
            if (apart, ranks) not in self._made:
                self._made[apart, ranks] = dist.new_group(list(ranks), timeout=self._timeout)
            if self._process in ranks:
                mine = self._made[apart, ranks]
        return mine if isinstance(mine, dist.ProcessGroup) else None

    def spanning(self, span: int, inside: int = 1, hosted: int = 1) -> ProcessGroup:
        """The group of every `inside`-th process in this process's block of `span` processes."""
        return self.own(self._blocks(span, inside), hosted)

    def block(self, span: int) -> tuple[ProcessGroup, Ahead | None]:
        """The group of a block of `span` processes, for the second stage of a sync."""
        return self.second_stage(self._blocks(span, 1))

    def second_stage(self, blocks: Sequence[Sequence[int]]) -> tuple[ProcessGroup, Ahead | None]:
        """The group for the second stage of a sync; in the background it needs its own."""
        return self.own(blocks, apart=self._ahead), Ahead() if self._ahead else None

    def _blocks(self, span: int, inside: int) -> list[range]:
        return [
            range(start + offset, start + span, inside)
            for start in range(0, self.processes, span)
            for offset in range(inside)
        ]


def _equal_levels(topology: Topology, groups: _Groups, hosted: int) -> tuple[HostedLevel, ...]:
    hosted_levels: list[HostedLevel] = []
    inside = 1  # workers of a member of the current level
    for size in topology.sizes:
        whole = inside * size
        if hosted % whole == 0:
            hosted_levels.append(HostedLevel(hosted // whole, size, InProcess(size)))
        elif inside <= hosted:
            members = hosted // inside
            hosted_levels.append(
                HostedLevel(1, members, groups.spanning(whole // hosted, hosted=members))
            )
        else:
            copies = inside // hosted  # processes that hold the same anchor
            across = groups.spanning(whole // hosted, copies)
            hosted_levels.append(HostedLevel(1, 1, Sliced(across, *groups.block(copies))))
        inside = whole
    return tuple(hosted_levels)


def _unequal_levels(
    topology: Topology, groups: _Groups
) -> tuple[tuple[HostedLevel, ...], tuple[tuple[int, int, int], ...]]:
    blocks = topology.unequal
    starts = [sum(blocks[:index]) for index in range(len(blocks))]
    if groups.processes == 1:
        inner = tuple(HostedLevel(1, size, InProcess(size)) for size in blocks)
        rows = tuple(zip(starts, blocks, range(len(blocks)), strict=True))
        return (*inner, HostedLevel(1, len(blocks), InProcess(len(blocks)))), rows
    ranks = [range(start, start + size) for start, size in zip(starts, blocks, strict=True)]
    inside = groups.own(ranks)
    across = groups.own_or_none([starts])
    block = next(index for index, members in enumerate(ranks) if groups.rank in members)
    second, ahead = groups.second_stage(ranks)
    hosted_levels = (
        HostedLevel(1, 1, inside),
        HostedLevel(1, 1, Leaders(across, second, len(blocks), ahead)),
    )
    return hosted_levels, ((0, 1, block),)


def with_latency(placement: Placement, seconds: Sequence[float], clock: Clock = WALL) -> Placement:
    """`placement` with a delay for each call of its levels, innermost first.

    Args:
        placement: from `localsgd.averaging.placement.placement_of`.
        seconds: one for each level.
        clock: on which they pass.
    """
    levels = placement.topology.levels
    if len(seconds) != levels:
        raise UserError(
            f"{plural(len(seconds), 'delay')} for the {plural(levels, 'level')} of topology "
            f"{placement.topology}; give one for each, innermost first"
        )
    # With unequal blocks, all hosted levels but the last are blocks of the innermost level.
    inner = len(placement.hosted_levels) - levels + 1
    delays = [seconds[0]] * inner + list(seconds[1:])
    hosted_levels = [
        replace(level, collective=WithLatency(level.collective, delay, clock)) if delay else level
        for level, delay in zip(placement.hosted_levels, delays, strict=True)
    ]
    return replace(placement, hosted_levels=tuple(hosted_levels))
