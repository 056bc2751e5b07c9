"""What every collective promises, against the obvious definition on the data of all members.

Whoever adds one adds a line to `KINDS`: how many processes it needs, and a function that builds it
in each of them and says which groups and members that process hosts.

Shapes: G groups in all · M members of each · n, c scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from localsgd.testing import check_collective
from localsgd.testing.collective import Seat
from localsgd.wire import (
    InProcess,
    Leaders,
    Metered,
    Pending,
    ProcessGroup,
    Sliced,
    WithLatency,
    process_group,
)
from localsgd.wire.metered import Entry
from tests.distributed.harness import run


@dataclass(frozen=True)
class Kind:
    """One way to host G groups of M members."""

    name: str
    processes: int
    groups: int
    members: int
    seat: Callable[..., Seat]
    arguments: tuple[object, ...] = ()
    direct: bool = False
    """Whether small tensors are gathered as large ones are."""

    def build(self) -> Seat:
        return self.seat(*self.arguments)


def in_process(groups: int, members: int) -> Seat:
    return Seat(InProcess(members), range(groups), range(members))


def _own(groups: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """The group of this rank; every process makes all of them."""
    made = [dist.new_group(list(ranks)) for ranks in groups]
    return next(group for group in made if isinstance(group, dist.ProcessGroup))


def over_processes(groups: int, hosted: int) -> Seat:
    """Processes in G rows next to each other; each hosts `hosted` members of its group."""
    span = dist.get_world_size() // groups
    mine, place = divmod(dist.get_rank(), span)
    group = _own([range(start, start + span) for start in range(0, span * groups, span)])
    members = range(place * hosted, (place + 1) * hosted)
    return Seat(ProcessGroup(group, hosted), [mine], members)


def sliced(copies: int) -> Seat:
    """Members that `copies` processes next to each other hold alike."""
    world = dist.get_world_size()
    inside = _own([range(start, start + copies) for start in range(0, world, copies)])
    across = _own([range(place, world, copies) for place in range(copies)])
    collective = Sliced(ProcessGroup(across), ProcessGroup(inside))
    return Seat(collective, [0], [dist.get_rank() // copies])


def led(*blocks: int) -> Seat:
    """Members that blocks of processes of these sizes hold alike."""
    starts = [sum(blocks[:index]) for index in range(len(blocks))]
    ranks = [range(start, start + size) for start, size in zip(starts, blocks, strict=True)]
    inside = ProcessGroup(_own(ranks))
    leaders = dist.new_group(starts)
    across = ProcessGroup(leaders) if isinstance(leaders, dist.ProcessGroup) else None
    member = next(index for index, row in enumerate(ranks) if dist.get_rank() in row)
    return Seat(Leaders(across, inside, len(blocks)), [0], [member])


def metered(kind: Kind) -> Seat:
    seat = kind.build()
    return Seat(Metered(seat.collective, Entry()), seat.groups, seat.members)


def late(kind: Kind) -> Seat:
    seat = kind.build()
    return Seat(WithLatency(seat.collective, 0.01), seat.groups, seat.members)


BARE = [
    Kind("one member in process", 1, 1, 1, in_process, (1, 1)),
    Kind("five members in process", 1, 1, 5, in_process, (1, 5)),
    Kind("three groups of four in process", 1, 3, 4, in_process, (3, 4)),
    Kind("two processes", 2, 1, 2, over_processes, (1, 1)),
    Kind("two processes of two", 2, 1, 4, over_processes, (1, 2)),
    Kind("four processes", 4, 1, 4, over_processes, (1, 1)),
    Kind("four processes of two", 4, 1, 8, over_processes, (1, 2)),
    Kind("two groups of two processes", 4, 2, 2, over_processes, (2, 1)),
    Kind("groups of one process of three", 2, 2, 3, over_processes, (2, 3)),
    Kind("slices of two blocks of two", 4, 1, 2, sliced, (2,)),
    Kind("slices of four blocks of one", 4, 1, 4, sliced, (1,)),
    Kind("slices of one block of four", 4, 1, 1, sliced, (4,)),
    Kind("leaders of one and three", 4, 1, 2, led, (1, 3)),
    Kind("leaders of two, one and one", 4, 1, 3, led, (2, 1, 1)),
]
KINDS = [
    *BARE,
    *(
        replace(kind, name=f"{kind.name} directly", direct=True)
        for kind in BARE
        if kind.processes == 4
    ),
    *(
        Kind(f"metered {kind.name}", kind.processes, kind.groups, kind.members, metered, (kind,))
        for kind in BARE
    ),
    *(
        Kind(f"delayed {kind.name}", kind.processes, kind.groups, kind.members, late, (kind,))
        for kind in (BARE[1], BARE[3])
    ),
]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name.replace(" ", "-"))


def everywhere(kind: Kind, check: Callable[[Kind, Seat], None]) -> None:
    if kind.processes == 1:
        _check(kind, check)
    else:
        run(kind.processes, _check, kind, check)


def _check(kind: Kind, check: Callable[[Kind, Seat], None]) -> None:
    with mock.patch.object(process_group, "DIRECT", 0 if kind.direct else process_group.DIRECT):
        check(kind, kind.build())


def whole(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Small whole numbers, different everywhere, the same in every process."""
    numbers = torch.randperm(torch.Size(shape).numel(), generator=torch.Generator().manual_seed(5))
    return (numbers % 120).view(shape).to(dtype)


def hosted(x: Tensor, seat: Seat) -> Tensor:
    """The rows `[g, m, ...]` of `x [G, M, ...]` that lie here, as memory of their own."""
    return x[list(seat.groups)][:, list(seat.members)].clone()


def check_members(kind: Kind, seat: Seat) -> None:
    assert seat.collective.members == kind.members


def check_payload(kind: Kind, seat: Seat) -> None:
    """Bytes that one member hands over: the same wherever it is hosted."""
    entry, (m, n, c) = Entry(), (kind.members, 8, 5)
    meter = Metered(seat.collective, entry)

    def counted(call: Pending[Tensor]) -> tuple[int, int]:
        call.wait()
        before = (entry.calls, entry.bytes)
        entry.calls = entry.bytes = 0
        return before

    alone = m == 1
    sent = hosted(whole(kind.groups, m, n), seat)
    assert counted(meter.sum(sent)) == (1, 0 if alone else 8 * n)
    sent = hosted(whole(kind.groups, m, c, dtype=torch.uint8), seat)
    assert counted(meter.gather(sent)) == (1, 0 if alone else c)
    sent = hosted(whole(kind.groups, m, m, c, dtype=torch.float32), seat)
    assert counted(meter.exchange(sent)) == (1, 4 * c * (m - 1))
    assert entry.seconds > 0


def check_conforming(kind: Kind, seat: Seat) -> None:
    check_collective(seat.collective, members=seat.members, groups=seat.groups)


@every_kind
def test_conforms(kind: Kind) -> None:
    everywhere(kind, check_conforming)


@every_kind
def test_members(kind: Kind) -> None:
    everywhere(kind, check_members)


@pytest.mark.parametrize("kind", BARE, ids=lambda kind: kind.name.replace(" ", "-"))
def test_payload_does_not_depend_on_hosting(kind: Kind) -> None:
    everywhere(kind, check_payload)
