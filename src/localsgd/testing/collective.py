"""What every collective promises, against the obvious definition on the data of all members.

Shapes: g groups hosted here · m members of each hosted here · M members of each · n, c scalars.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from localsgd.wire import Collective, Pending

FLOATS = (torch.float32, torch.float64)
OTHERS = (torch.bfloat16, torch.float16, torch.uint8, torch.int8, torch.int64)
"""What is gathered and exchanged too: rows in half precision, payloads, places."""


@dataclass(frozen=True)
class Seat:
    """A collective as one process has it.

    Args:
        collective: under test.
        groups, members: the numbers of those hosted here among all.
    """

    collective: Collective
    groups: Sequence[int]
    members: Sequence[int]

    @property
    def count(self) -> int:
        """M."""
        return self.collective.members

    def data(self, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
        """Small whole numbers `[g, *shape]` of the groups hosted here, equal in all processes."""
        return torch.stack([_whole(group, shape) for group in self.groups]).to(dtype)

    def hosted(self, x: Tensor) -> Tensor:
        """The members `[g, m, ...]` of `x [g, M, ...]` that lie here, as memory of their own."""
        return x[:, list(self.members)].clone()


def check_collective(
    collective: Collective, *, members: Sequence[int], groups: Sequence[int] = (0,)
) -> None:
    """Asserts that `collective` joins members as a level asks. Call it in all processes at once.

    Args:
        members: the numbers of the members hosted here, of 0, ..., M - 1.
        groups: the numbers of the groups hosted here.
    """
    seat = Seat(collective, groups, members)
    for check in CHECKS:
        check(seat)


def _sums_in_place(seat: Seat) -> None:
    for dtype, n in itertools.product(FLOATS, (8, 7, 1)):
        x = seat.data(seat.count, n, dtype=dtype)
        mine = seat.hosted(x)
        total = seat.collective.sum(mine).wait()
        assert total.dtype == dtype, f"a sum of {dtype} is {total.dtype}"
        assert total.shape == mine[:, 0].shape, f"a sum has the shape {tuple(total.shape)}"
        assert torch.equal(total, x.sum(1)), "a sum is wrong"
        assert total.data_ptr() == mine[:, 0].data_ptr(), "a sum is not in place, in x[:, 0]"


def _gathers(seat: Seat) -> None:
    for dtype in (*FLOATS, *OTHERS):
        x = seat.data(seat.count, 5, dtype=dtype)
        mine = seat.hosted(x)
        gathered = seat.collective.gather(mine).wait()
        assert gathered.dtype == dtype, f"{dtype} is gathered as {gathered.dtype}"
        assert torch.equal(gathered, x), "what is gathered is not that of all members, in order"
        assert torch.equal(mine, seat.hosted(x)), "gather() writes into what it is given"


def _exchanges(seat: Seat) -> None:
    for dtype in (*FLOATS, *OTHERS):
        x = seat.data(seat.count, seat.count, 5, dtype=dtype)
        mine = seat.hosted(x)
        received = seat.collective.exchange(mine).wait()
        assert received.dtype == dtype, f"{dtype} is exchanged as {received.dtype}"
        assert torch.equal(received, seat.hosted(x.transpose(1, 2))), (
            "member j has not received x[i, j] of every member i, in order"
        )
        assert torch.equal(mine, seat.hosted(x)), "exchange() writes into what it is given"


def _exchanges_of_padded_rows(seat: Seat) -> None:
    """Rows of a matrix that is wider than what is sent, as a slice of a row is."""
    x = seat.data(seat.count, seat.count * 3 + 2)
    mine = seat.hosted(x)[..., :-2].unflatten(-1, (seat.count, 3))
    received = seat.collective.exchange(mine).wait()
    sent = x[..., :-2].unflatten(-1, (seat.count, 3))
    assert torch.equal(received, seat.hosted(sent.transpose(1, 2))), (
        "exchange() is wrong for memory with gaps"
    )


def _sends_to_one_each(seat: Seat) -> None:
    send = getattr(seat.collective, "send", None)
    if send is None:  # which gossip alone needs
        return
    m = seat.count
    orders = [[(k + 1) % m for k in range(m)], list(reversed(range(m))), list(range(m))]
    for dtype, to in itertools.product(FLOATS, orders):
        x = seat.data(m, 5, dtype=dtype)
        mine = seat.hosted(x)
        received = send(mine, to).wait()
        expected = torch.empty_like(x)
        expected[:, to] = x
        assert received.dtype == dtype, f"{dtype} is sent as {received.dtype}"
        assert torch.equal(received, seat.hosted(expected)), (
            f"member to[i] has not received what member i sends, for to = {to}"
        )
        assert torch.equal(mine, seat.hosted(x)), "send() writes into what it is given"


def _calls_may_overlap_and_be_waited_for_twice(seat: Seat) -> None:
    x = seat.data(seat.count, 8)
    calls: list[Pending[Tensor]] = [
        seat.collective.sum(seat.hosted(x)),
        seat.collective.gather(seat.hosted(x)),
    ]
    for expected, pending in zip((x.sum(1), x), calls, strict=True):
        assert torch.equal(pending.wait(), expected), "a call is wrong beside another"
        assert torch.equal(pending.wait(), expected), "waiting twice gives another result"


CHECKS = (
    _sums_in_place,
    _gathers,
    _exchanges,
    _exchanges_of_padded_rows,
    _sends_to_one_each,
    _calls_may_overlap_and_be_waited_for_twice,
)


def _whole(group: int, shape: Sequence[int]) -> Tensor:
    draw = torch.Generator().manual_seed(5 + group)
    return (torch.randperm(torch.Size(shape).numel(), generator=draw) % 120).view(*shape)
