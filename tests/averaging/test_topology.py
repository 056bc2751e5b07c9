"""Topologies as people write them, and where each process finds itself in one."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from localsgd.averaging.build import build_levels
from localsgd.averaging.placement import Placement, placement_of, row_multiple
from localsgd.averaging.topology import Topology
from localsgd.errors import UserError
from tests.distributed.harness import run


@pytest.mark.parametrize(
    ("text", "sizes", "unequal", "workers"),
    [
        ("1", (1,), (), 1),
        (16, (16,), (), 16),
        ("8x2", (2, 8), (), 16),  # 8 blocks of 2
        ("4x2x3", (3, 2, 4), (), 24),
        ("1x8", (8, 1), (), 8),
        ("2+3+3", (3, 3), (2, 3, 3), 8),
        ("1+7", (7, 2), (1, 7), 8),
    ],
)
def test_parses(text: str | int, sizes: tuple, unequal: tuple, workers: int) -> None:
    topology = Topology.parse(text)
    assert topology == Topology(sizes, unequal)
    assert topology.workers == workers
    assert topology.levels == len(sizes)
    assert str(topology) == str(text)
    assert Topology.parse(str(topology)) == topology


def test_blocks_that_turn_out_equal_are_a_product() -> None:
    assert Topology.parse("2+2+2") == Topology.parse("3x2")
    assert Topology.parse(" 8x2 ") == Topology.parse("8x2")


@pytest.mark.parametrize(
    "text", ["", "0", "8x0", "x2", "8x", "2+", "2+0", "8*2", "2x2+1", "-4", "4.0"]
)
def test_refuses_what_it_does_not_understand(text: str) -> None:
    with pytest.raises(UserError, match="is not understood; write 16, 8x2"):
        Topology.parse(text)


@pytest.mark.parametrize("workers", [1, 2, 3, 8, 16])
def test_rows_can_be_cut_into_slices_and_chunks_of_whole_bytes(workers: int) -> None:
    for parts in range(1, workers + 1):
        if workers % parts == 0:
            assert row_multiple(workers) % (8 * parts) == 0


# Places, as the classes that join members


def kinds(placement: Placement) -> list[str]:
    return [
        f"{place.groups} of {place.hosted}/{place.collective.members} {type(joined).__name__}"
        for place in placement.hosted_levels
        for joined in [place.collective]
    ]


def placed(text: str) -> tuple[list[str], list[int]]:
    placement = placement_of(Topology.parse(text))
    return kinds(placement), list(placement.workers)


def test_one_process_hosts_all() -> None:
    assert placed("2x2x2") == (
        ["4 of 2/2 InProcess", "2 of 2/2 InProcess", "1 of 2/2 InProcess"],
        list(range(8)),
    )
    assert placed("1+3") == (
        ["1 of 1/1 InProcess", "1 of 3/3 InProcess", "1 of 2/2 InProcess"],
        list(range(4)),
    )


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("4", ["1 of 1/4 ProcessGroup"]),
        ("8", ["1 of 2/8 ProcessGroup"]),
        ("2x2", ["1 of 1/2 ProcessGroup", "1 of 1/2 Sliced"]),
        ("4x2", ["1 of 2/2 InProcess", "1 of 1/4 ProcessGroup"]),
        ("2x4", ["1 of 2/4 ProcessGroup", "1 of 1/2 Sliced"]),
        ("8x2", ["2 of 2/2 InProcess", "1 of 2/8 ProcessGroup"]),
        ("2x2x2", ["1 of 2/2 InProcess", "1 of 1/2 ProcessGroup", "1 of 1/2 Sliced"]),
        ("1x4", ["1 of 1/4 ProcessGroup", "1 of 1/1 Sliced"]),
        ("4x1", ["1 of 1/1 InProcess", "1 of 1/4 ProcessGroup"]),
        ("2+1+1", ["1 of 1/{inside} ProcessGroup", "1 of 1/3 Leaders"]),
    ],
)
def test_four_processes(text: str, levels: list[str]) -> None:
    workers: list[int] = []
    for rank, (found, own) in enumerate(run(4, placed, text)):
        inside = 2 if rank < 2 else 1
        assert found == [level.format(inside=inside) for level in levels]
        workers += own
    assert workers == list(range(Topology.parse(text).workers))


def refusal(text: str) -> str:
    with pytest.raises(UserError) as refused:
        placement_of(Topology.parse(text))
    return str(refused.value)


def test_what_cannot_be_spread_is_refused_by_every_process() -> None:
    for text, reason in [
        ("6", "6 workers (6) cannot be spread evenly over 4 processes; use a number of processes"),
        ("2", "2 workers (2) cannot be spread evenly over 4 processes"),
        ("2+6", "blocks of unequal size (2+6) can't be placed on"),
    ]:
        for said in run(4, refusal, text):
            assert said.startswith(reason)
            assert "\n" not in said


def test_a_process_may_not_cut_a_block() -> None:
    for said in run(4, refusal, "3x2x2"):
        assert said.startswith("topology 3x2x2 over processes of 3 workers would cut a block of 2")


# Who is where


def whereabouts(text: str) -> list[tuple[list[int], list[list[int]]]]:
    placement = placement_of(Topology.parse(text))
    rows = torch.zeros(placement.hosted, 64)
    levels = build_levels(placement, rows)
    return [(groups, members) for _, groups, members in placement.located(levels)]


def test_groups_and_members_are_known_by_their_first_workers() -> None:
    assert whereabouts("2x2x2") == [
        ([0, 2, 4, 6], [[0, 1], [2, 3], [4, 5], [6, 7]]),
        ([0, 4], [[0, 2], [4, 6]]),
        ([0], [[0, 4]]),
    ]
    assert whereabouts("1+3") == [([0], [[0]]), ([1], [[1, 2, 3]]), ([0], [[0, 1]])]


def test_over_processes_each_knows_its_own() -> None:
    found = run(4, whereabouts, "2x4")
    assert found[0] == [([0], [[0, 1]]), ([0], [[0]])]
    assert found[1] == [([0], [[2, 3]]), ([0], [[0]])]
    assert found[3] == [([4], [[6, 7]]), ([0], [[4]])]
    found = run(4, whereabouts, "4x2")
    assert found[2] == [([4], [[4, 5]]), ([0], [[4]])]


def test_levels_are_views_of_the_rows() -> None:
    rows = torch.zeros(8, 64)
    inner, outer = build_levels(placement_of(Topology.parse("4x2")), rows)
    rows[2] = 7
    assert inner.anchor[1].eq(7).all()
    assert outer.members.eq(inner.anchor).all()  # type: ignore[union-attr]
    assert inner.anchor.data_ptr() == outer.anchor.data_ptr() == rows.data_ptr()


def names_of_groups() -> list[str]:
    """Every process makes the groups in the same order: else this hangs."""
    for text in ("2x2", "4", "1x4", "2+1+1", "4x1"):
        placement = placement_of(Topology.parse(text))
        x = torch.ones(1, placement.hosted, 64)
        assert placement.world.sum(x).wait()[0, 0] == placement.topology.workers
    return [type(placement.world).__name__, str(dist.get_world_size())]


def test_several_topologies_in_one_process_group() -> None:
    assert run(4, names_of_groups) == [["ProcessGroup", "4"]] * 4
