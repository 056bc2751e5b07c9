"""Gossip against its mixing matrix, here and over processes.

Shapes: M members · n scalars of a row.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from localsgd.averaging.build import build_levels
from localsgd.averaging.gossip import RING, Gossip, Mixing, Pairs
from localsgd.averaging.level import average_and_share, final_sync
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.reduce import OrderedMean
from localsgd.wire import Entry, InProcess, Ledger, Metered
from tests.distributed import harness

N = 12
MIXINGS: dict[str, Mixing] = {"ring": RING, "pairs": Pairs(3)}
every_mixing = pytest.mark.parametrize("mixing", MIXINGS.values(), ids=MIXINGS)


def matrix(mixing: Mixing, sync: int, members: int) -> list[list[Fraction]]:
    """W, exactly: row k has what member k takes of each."""
    w = [[Fraction(int(k == j)) for j in range(members)] for k in range(members)]
    for share, to in mixing(sync, members):
        part = Fraction(share).limit_denominator(3)
        for source, target in enumerate(to):
            w[target][target] -= part
            w[target][source] += part
    return w


def whole(members: int) -> Tensor:
    """Numbers that mix exactly: multiples of 6 ** 3."""
    draw = torch.Generator().manual_seed(1)
    return 216 * torch.randint(-50, 50, (members, N), generator=draw).double()


def level(rows: Tensor, mixing: Mixing) -> Gossip:
    return Gossip(rows.unsqueeze(0), InProcess(len(rows)), mixing)


@every_mixing
@pytest.mark.parametrize("members", range(1, 8))
def test_a_sync_is_the_matrix_and_that_is_doubly_stochastic(mixing: Mixing, members: int) -> None:
    rows = whole(members)
    made = level(rows, mixing)
    for sync in range(3):
        w = matrix(mixing, sync, members)
        assert all(sum(row) == 1 for row in w)
        assert all(sum(column) == 1 for column in zip(*w, strict=True))
        assert all(entry >= 0 for row in w for entry in row)
        expected = [
            [
                float(sum(w[k][j] * Fraction(float(rows[j, i])) for j in range(members)))
                for i in range(N)
            ]
            for k in range(members)
        ]
        average_and_share([made])
        torch.testing.assert_close(
            rows, torch.tensor(expected, dtype=torch.float64), rtol=4e-16, atol=1e-11
        )


def test_a_ring_is_the_matrix_of_d_psgd() -> None:
    third = Fraction(1, 3)
    assert matrix(RING, 0, 5) == [
        [third if (k - j) % 5 in (0, 1, 4) else 0 for j in range(5)] for k in range(5)
    ]
    assert matrix(RING, 0, 3) == [[third] * 3] * 3
    assert matrix(RING, 7, 2) == [[Fraction(1, 2)] * 2] * 2
    assert matrix(RING, 0, 1) == [[1]]


def test_pairs_are_drawn_anew_and_leave_at_most_one_alone() -> None:
    drawn = [Pairs(3)(sync, 7)[0][1] for sync in range(20)]
    for to in drawn:
        assert [to[to[k]] for k in range(7)] == list(range(7))
        assert sum(to[k] == k for k in range(7)) == 1
    assert len(set(drawn)) > 15
    assert drawn == [Pairs(3)(sync, 7)[0][1] for sync in range(20)]
    assert drawn != [Pairs(4)(sync, 7)[0][1] for sync in range(20)]


def test_members_of_a_ring_come_together_as_its_second_eigenvalue_says() -> None:
    """1/3 + 2/3 cos(2 π / M) of what differs is left, for the slowest wave around the ring."""
    members = 8
    angle = 2 * torch.pi * torch.arange(members, dtype=torch.float64) / members
    rows = angle.cos().unsqueeze(1).repeat(1, N)
    made = level(rows, RING)
    before = rows.clone()
    average_and_share([made])
    left = 1 / 3 + 2 / 3 * float(angle[1].cos())
    torch.testing.assert_close(rows, left * before, rtol=1e-12, atol=1e-12)


@every_mixing
def test_it_ends_with_the_mean_which_has_not_moved(mixing: Mixing) -> None:
    rows = whole(6)
    mean = rows.mean(0)
    made = level(rows, mixing)
    assert not made.may_differ
    average_and_share([made])
    assert made.may_differ
    final_sync([made], first=1)
    assert not made.may_differ
    torch.testing.assert_close(rows, mean.expand_as(rows), rtol=1e-15, atol=1e-10)
    assert torch.equal(rows, rows[:1].expand_as(rows))


@every_mixing
def test_half_precision_is_mixed_in_float32_and_rounded_once(mixing: Mixing) -> None:
    rows = (whole(5) / 7).bfloat16()
    wide = rows.float()
    average_and_share([level(rows, mixing)])
    average_and_share([level(wide, mixing)])
    assert torch.equal(rows, wide.bfloat16())


@every_mixing
def test_saved_between_two_syncs_it_goes_on_to_the_same_bits(mixing: Mixing) -> None:
    rows = whole(5) / 7
    one = level(rows, mixing)
    for _ in range(2):
        average_and_share([one])
    others, state = rows.clone(), one.state()
    other = level(others, mixing)
    other.load(state)
    assert other.may_differ
    for made in (one, other):
        average_and_share([made])
        final_sync([made], first=1)
    assert torch.equal(rows, others)


TOPOLOGIES = ("4", "8", "2x4", "4x2", "2x2x2")


def mixed(topology: str, name: str) -> tuple[range, Tensor, list[tuple[int, int]]]:
    """Three syncs of all levels and the last one: workers, rows before that, calls and bytes."""
    placement = placement_of(Topology.parse(topology))
    hosted = placement.workers
    rows = (whole(placement.topology.workers) / 7)[hosted.start : hosted.stop].clone()
    ledger = Ledger.of(placement.topology.levels)
    means = [OrderedMean() for _ in ledger.levels]
    levels = build_levels(placement, rows, reducers=means, ledger=ledger, mixing=MIXINGS[name])
    for _ in range(3):
        average_and_share(levels)
    before = rows.clone()
    final_sync(levels, first=len(levels))
    return hosted, torch.stack([before, rows]), [(e.calls, e.bytes) for e in ledger.levels]


def all_mixed() -> list[Any]:
    return [mixed(*case) for case in itertools.product(TOPOLOGIES, MIXINGS)]


@pytest.fixture(scope="module")
def here() -> list[Any]:
    return all_mixed()


@pytest.mark.parametrize("processes", [2, 4])
def test_the_same_bits_and_ledger_over_processes(here: list[Any], processes: int) -> None:
    parts = harness.run(processes, all_mixed, seconds=240)
    for index, (_, rows, counted) in enumerate(here):
        assert all(part[index][2] == counted for part in parts)
        joined = torch.cat([part[index][1] for part in parts], dim=1)
        assert torch.equal(joined, rows)
    assert not dist.is_initialized()


def test_blocks_average_inside_and_gossip_outside(here: list[Any]) -> None:
    case = list(itertools.product(TOPOLOGIES, MIXINGS)).index(("4x2", "ring"))
    rows = here[case][1][0]
    blocks = (whole(8) / 7).view(4, 2, N).mean(1)
    w = torch.tensor(
        [[float(entry) for entry in row] for row in matrix(RING, 0, 4)], dtype=torch.float64
    )
    expected = torch.linalg.matrix_power(w, 3) @ blocks
    torch.testing.assert_close(rows, expected.repeat_interleave(2, 0), rtol=1e-13, atol=1e-10)
    assert torch.equal(rows[::2], rows[1::2])


@pytest.mark.parametrize(("name", "sends"), [("ring", 2), ("pairs", 1)])
def test_a_member_sends_its_row_to_each_neighbour(here: list[Any], name: str, sends: int) -> None:
    case = list(itertools.product(TOPOLOGIES, MIXINGS)).index(("4", name))
    [(calls, sent)] = here[case][2]
    last = 2  # an ordered mean: an exchange of 3 of 4 chunks, and a gathering of one
    assert calls == 3 * sends + last
    assert sent == 3 * sends * N * 8 + N * 8


def test_who_is_left_alone_sends_nothing_and_the_ledger_has_the_mean() -> None:
    entry = Entry()
    rows = whole(5).unsqueeze(0)
    average_and_share([Gossip(rows, Metered(InProcess(5), entry), Pairs(3))])
    assert (entry.calls, entry.bytes, entry.arrived) == (1, N * 8 * 4 // 5, N * 8 * 4 // 5)
