"""Who agrees with whom: K workers in nested blocks, and where the processes lie among them.

`8x2` is 8 blocks of 2 workers, as in the paper; `4x2x2` is 4 racks of 2 nodes of 2 workers; `2+3+3`
is three blocks of unequal size. Lists by level run from the innermost outwards, so `8x2` has the
sizes (2, 8).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from localsgd.collective import (
    Collective,
    Entry,
    InProcess,
    Leaders,
    Ledger,
    Metered,
    ProcessGroup,
    Sliced,
)
from localsgd.collective.ahead import Ahead
from localsgd.collective.metered import Waiting
from localsgd.collective.presence import Presence
from localsgd.delayed import NO_DELAY, Delay, Fragmented
from localsgd.errors import UserError
from localsgd.level import Blocks, Level, Spare
from localsgd.outer import Outer
from localsgd.reduce import Reducer
from localsgd.reduce.compressor import scale_dtype
from localsgd.reduce.seam import part_of

AnyLevel: TypeAlias = Level | Blocks | Fragmented


@dataclass(frozen=True)
class Topology:
    """Nested blocks of workers.

    Args:
        sizes: members of a group at each level, innermost first; their product is K.
        unequal: sizes of the innermost blocks where they differ (two levels then); empty otherwise.
    """

    sizes: tuple[int, ...]
    unequal: tuple[int, ...] = ()

    @staticmethod
    def parse(text: str | int) -> Topology:
        """`16`, `8x2`, `4x2x2` (outermost first, as people write it) or `2+3+3`."""
        text = str(text).strip()
        if re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
            return Topology(tuple(int(size) for size in reversed(text.split("x"))))
        if re.fullmatch(r"[1-9]\d*(\+[1-9]\d*)+", text):
            blocks = tuple(int(size) for size in text.split("+"))
            if len(set(blocks)) == 1:
                return Topology((blocks[0], len(blocks)))
            return Topology((max(blocks), len(blocks)), blocks)
        raise UserError(
            f"topology {text!r} is not understood; write 16, 8x2 (8 blocks of 2), 4x2x2, or 2+3+3"
        )

    @property
    def workers(self) -> int:
        return sum(self.unequal) if self.unequal else math.prod(self.sizes)

    @property
    def levels(self) -> int:
        return len(self.sizes)

    def __str__(self) -> str:
        if self.unequal:
            return "+".join(map(str, self.unequal))
        return "x".join(map(str, reversed(self.sizes)))


@dataclass(frozen=True)
class Place:
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
    """A topology laid over processes: worker k lives in process k // w.

    Args:
        topology: the blocks.
        rank: of this process.
        hosted: w, the workers that each process hosts.
        places: of each level, innermost first; one for each block of an innermost level of unequal
            blocks.
        world: joins all K workers, whatever the levels.
        unequal: the blocks hosted here as (first hosted row, rows, block's index), where blocks
            differ.
    """

    topology: Topology
    rank: int
    hosted: int
    places: tuple[Place, ...]
    world: Collective
    unequal: tuple[tuple[int, int, int], ...] = ()

    @property
    def workers(self) -> range:
        """The workers that this process hosts."""
        return range(self.rank * self.hosted, (self.rank + 1) * self.hosted)

    def located(
        self, levels: Sequence[AnyLevel]
    ) -> Iterator[tuple[Level | Fragmented, list[int], list[list[int]]]]:
        """Each level with the first worker of its groups `[g]` and of their members `[g][m]`.

        Of the groups and members hosted here; levels of unequal blocks come one by one.
        """
        if self.topology.unequal:
            yield from self._located_unequal(levels)
            return
        base, inside = self.workers.start, 1
        for level, place_, size in zip(levels, self.places, self.topology.sizes, strict=True):
            whole = inside * size
            groups = [base // whole * whole + group * whole for group in range(place_.groups)]
            start = max(base // inside * inside, groups[0])
            members = [
                [start + group * whole + member * inside for member in range(place_.hosted)]
                for group in range(place_.groups)
            ]
            assert not isinstance(level, Blocks)
            yield level, groups, members
            inside = whole

    def _located_unequal(
        self, levels: Sequence[AnyLevel]
    ) -> Iterator[tuple[Level | Fragmented, list[int], list[list[int]]]]:
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
    """A row's length is a multiple of this many scalars, so that slices and chunks of it are whole
    bytes of signs.
    """
    return 8 * max(2, workers)


def place(
    topology: Topology,
    timeout: timedelta | None = None,
    presence: Presence | None = None,
    ahead: bool = False,
) -> Placement:
    """Lays `topology` over the processes of `torch.distributed` (over this one where it is not
    initialised).

    Every process must call this, with the same topology, as it makes process groups.

    Args:
        timeout: of the collectives; must outlast the longest time by which one process may run
            behind another.
        presence: looks after waits that take long, and keeps the groups, which end with it.
        ahead: whether the second stage of a sync between blocks is taken beside the program.
    """
    processes, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    check_hosting(topology, processes)
    hosted = topology.workers // processes
    groups = _Groups(processes, rank, timeout, presence, ahead)
    world = groups.spanning(processes, hosted=hosted) if processes > 1 else InProcess(hosted)
    if topology.unequal:
        places, blocks = _unequal_places(topology, groups, hosted)
    else:
        places, blocks = _equal_places(topology, groups, hosted), ()
    return Placement(topology, rank, hosted, places, world, blocks)


def check_hosting(topology: Topology, processes: int) -> None:
    """Refuses a number of processes unless each hosts whole blocks, or blocks whole processes."""
    hosted, rest = divmod(topology.workers, processes)
    if rest or not hosted:
        raise UserError(
            f"{topology.workers} workers ({topology}) cannot be spread evenly over {processes} "
            f"processes; use a number of processes that divides {topology.workers}"
        )
    if topology.unequal:
        if processes > 1 and hosted > 1:
            raise UserError(
                f"blocks of unequal size ({topology}) need one process in all or one for each "
                f"worker; {processes} processes host {hosted} workers each"
            )
        return
    whole = 1
    for size in topology.sizes:
        whole *= size
        if hosted % whole and whole % hosted:
            raise UserError(
                f"topology {topology} over processes of {hosted} workers would cut a block of "
                f"{whole}; a process must host whole blocks, or a block whole processes"
            )


class _Groups:
    """Makes process groups, each process all of them in the same order, and finds its own."""

    def __init__(
        self,
        processes: int,
        rank: int,
        timeout: timedelta | None,
        presence: Presence | None,
        ahead: bool,
    ) -> None:
        self.processes = processes
        self.rank = rank
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
        """Those of equal ranks are the same, unless one is `apart`."""
        mine = None
        for ranks in map(tuple, groups):
            if (apart, ranks) not in self._made:
                self._made[apart, ranks] = dist.new_group(list(ranks), timeout=self._timeout)
            if self.rank in ranks:
                mine = self._made[apart, ranks]
        if not isinstance(mine, dist.ProcessGroup):
            return None
        return ProcessGroup(mine, hosted, self._presence)

    def spanning(self, span: int, inside: int = 1, hosted: int = 1) -> ProcessGroup:
        """Blocks of `span` processes in a row; each joins every `inside`-th of its block."""
        return self.own(self._blocks(span, inside), hosted)

    def block(self, span: int) -> tuple[ProcessGroup, Ahead | None]:
        """Blocks of `span` processes in a row, for the second stage of a sync between blocks."""
        return self.second_stage(self._blocks(span, 1))

    def second_stage(self, blocks: Sequence[Sequence[int]]) -> tuple[ProcessGroup, Ahead | None]:
        """Beside the program it needs groups of its own."""
        return self.own(blocks, apart=self._ahead), Ahead() if self._ahead else None

    def _blocks(self, span: int, inside: int) -> list[range]:
        return [
            range(start + offset, start + span, inside)
            for start in range(0, self.processes, span)
            for offset in range(inside)
        ]


def _equal_places(topology: Topology, groups: _Groups, hosted: int) -> tuple[Place, ...]:
    places: list[Place] = []
    inside = 1  # workers of a member of the level at hand
    for size in topology.sizes:
        whole = inside * size
        if hosted % whole == 0:
            places.append(Place(hosted // whole, size, InProcess(size)))
        elif inside <= hosted:
            members = hosted // inside
            places.append(Place(1, members, groups.spanning(whole // hosted, hosted=members)))
        else:
            copies = inside // hosted  # processes that hold the same anchor
            across = groups.spanning(whole // hosted, copies)
            places.append(Place(1, 1, Sliced(across, *groups.block(copies))))
        inside = whole
    return tuple(places)


def _unequal_places(
    topology: Topology, groups: _Groups, hosted: int
) -> tuple[tuple[Place, ...], tuple[tuple[int, int, int], ...]]:
    blocks = topology.unequal
    starts = [sum(blocks[:index]) for index in range(len(blocks))]
    if groups.processes == 1:
        inner = tuple(Place(1, size, InProcess(size)) for size in blocks)
        rows = tuple(zip(starts, blocks, range(len(blocks)), strict=True))
        return (*inner, Place(1, len(blocks), InProcess(len(blocks)))), rows
    ranks = [range(start, start + size) for start, size in zip(starts, blocks, strict=True)]
    inside = groups.own(ranks)
    across = groups.own_or_none([starts])
    block = next(index for index, members in enumerate(ranks) if groups.rank in members)
    second, ahead = groups.second_stage(ranks)
    places = (Place(1, 1, inside), Place(1, 1, Leaders(across, second, len(blocks), ahead)))
    return places, ((0, 1, block),)


def build_levels(
    placement: Placement,
    rows: Tensor,
    *,
    reducers: Sequence[Reducer] | None = None,
    outers: Sequence[Outer | None] | None = None,
    ledger: Ledger | None = None,
    waiting: Waiting = nullcontext,
    delay: Delay = NO_DELAY,
    weigh: Callable[[], Tensor] | None = None,
    spare: Spare | None = None,
) -> list[AnyLevel]:
    """The levels over `rows [w, n]` of the workers hosted here, innermost first.

    Args:
        placement: where they lie, from `place`.
        rows: the models (or gradients) that agree.
        reducers, outers: one for each level; exact mean and plain averaging where not given.
        ledger: counts what crosses each level, for one member (of the first worker's block, where
            blocks differ).
        waiting: a context around all that may wait for other processes.
        delay: of the outermost level's agreements.
        weigh: makes the weights of the workers hosted here, `[1, w]`, for every agreement of the
            outermost level, which is the only one then.
        spare: lets members that are not finite be left out of linear means.
    """
    count = placement.topology.levels

    def make(
        level: int, place: Place, members: Tensor, counted: bool = True, **options: Any
    ) -> AnyLevel:
        collective = place.collective
        if ledger is not None:
            entry = ledger.levels[level] if counted else Entry()
            collective = Metered(collective, entry, waiting)
        outer = outers[level] if outers else None
        if level == count - 1 and weigh is not None:
            options["weigh"] = weigh

        def make_part(part: Tensor, start: int, stop: int) -> Level:
            reducer = reducers[level] if reducers else None
            if reducer is not None and (not counted or part.shape != members.shape):
                reducer = part_of(reducer, start, stop)  # with a memory of its own
            own = spare and spare.within(start, stop)
            return Level(part, collective, reducer=reducer, outer=outer, spare=own, **options)

        if level == count - 1 and not delay.none:
            return Fragmented(members, make_part, delay, row_multiple(placement.topology.workers))
        return make_part(members, 0, members.shape[-1])

    if placement.topology.unequal:
        return _unequal_levels(placement, rows, make)
    levels: list[AnyLevel] = []
    for index in range(count):
        place = placement.places[index]
        levels.append(make(index, place, rows.unflatten(0, (place.groups, place.hosted))))
        if index < count - 1:
            rows = levels[-1].anchor
    return levels


def _unequal_levels(placement: Placement, rows: Tensor, make: Callable[..., Any]) -> list[AnyLevel]:
    blocks = placement.topology.unequal
    hosted = placement.unequal
    anchors = rows[[start for start, _, _ in hosted]].clone()
    *inner, outer = placement.places
    levels = [
        make(
            0,
            place,
            rows[start : start + size].unsqueeze(0),
            counted=index == 0,  # The ledger is that of the first worker hosted here.
            anchor=anchors[index : index + 1],
        )
        for index, (place, (start, size, _)) in enumerate(zip(inner, hosted, strict=True))
    ]
    # A block weighs as many workers as it has, so that H^b = 1 is the flat average (Lin et al.
    # 2020, K_i). In half precision the shares would be rounded and not add up to 1.
    dtype = scale_dtype(rows.dtype)
    shares = torch.tensor(blocks, dtype=dtype, device=rows.device) / sum(blocks)
    weights = shares[[block for _, _, block in hosted]].unsqueeze(0)
    return [Blocks(levels, anchors), make(1, outer, anchors.unsqueeze(0), weights=weights)]
