"""Who is in a worker, and who averages with whom."""

from __future__ import annotations

import pytest

from localsgd.averaging.grid import SINGLE, Grid
from localsgd.errors import UserError


def test_each_rank_is_a_worker() -> None:
    grid = Grid.of_single_ranks(3)
    assert grid.ranks == ((0, 1, 2),)
    assert grid.workers == [(0,), (1,), (2,)]
    assert SINGLE.workers == [(0,)]


def test_shards_next_to_each_other_and_far_apart() -> None:
    near = Grid.of_peers([[0, 2, 4], [1, 3, 5]] * 3)
    assert near.ranks == ((0, 2, 4), (1, 3, 5))
    assert near.workers == [(0, 1), (2, 3), (4, 5)]
    assert (near.position(3), near.peers(3), near.worker(3)) == (1, (1, 3, 5), (2, 3))
    far = Grid.of_peers([[0, 1], [0, 1], [2, 3], [2, 3]])
    assert far.workers == [(0, 2), (1, 3)]


@pytest.mark.parametrize(
    "peers",
    [
        [[0, 1], [0, 1], [2], [3]],  # of unequal sizes
        [[0, 1], [1, 2], [1, 2]],  # that overlap
        [[1], [0]],  # without themselves
        [[0, 1], [1, 0]],  # in another order
        [[0], [0]],
    ],
)
def test_ranks_that_contradict_each_other(peers: list[list[int]]) -> None:
    with pytest.raises(UserError, match="don't agree on who averages with whom"):
        Grid.of_peers(peers)
