"""What stands in a run's store may come from anyone."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from localsgd.train.launch.board import Board, Verdict
from localsgd.train.launch.judge import State, Status
from localsgd.train.launch.slurm import LOOPBACK
from localsgd.train.launch.store import open_store, serve_on
from localsgd.train.launch.world import Store, World

STATUS = Status(3, 12, State.WORKING, "pid 7 on h")


@pytest.fixture
def place() -> Iterator[Store]:
    store, port = serve_on(LOOPBACK)
    yield Store("127.0.0.1", port, of_rank_0=False)
    del store


@pytest.fixture
def board(place: Store) -> Board:
    return Board(World(0, 2, 0, 2, place), 5.0)


@pytest.fixture
def stranger(place: Store) -> dist.Store:
    client = open_store(place, timedelta(seconds=5))
    return dist.PrefixStore("localsgd/heartbeat/0", client)


def test_what_is_posted_is_read(board: Board) -> None:
    assert board.read([0, 1]) == ({}, None)
    board.post(1, STATUS)
    assert board.read([0, 1]) == ({1: STATUS}, None)
    assert board.judge(Verdict("first")) == Verdict("first")
    assert board.judge(Verdict("second", of_itself=True)) == Verdict("first")
    assert board.read([]) == ({}, Verdict("first"))


@pytest.mark.parametrize(
    "posted", ["", "{", "1", "[1]", '{"pid": 1}', '[1, 2, "asleep", "who"]', "[[], 2, 3, 4]"]
)
def test_a_status_of_a_stranger_is_no_rank_s(
    board: Board, stranger: dist.Store, posted: str
) -> None:
    stranger.set("status/1", posted)
    with pytest.raises(ValueError):
        board.read([1])


@pytest.mark.parametrize("posted", ["", "[", "1", "[]", '{"text": 1}'])
def test_a_verdict_of_a_stranger_is_no_rank_s(
    board: Board, stranger: dist.Store, posted: str
) -> None:
    stranger.set("verdict", posted)
    with pytest.raises(ValueError):
        board.read([])
