"""What stands in a run's store may come from anyone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch.distributed as dist

from localsgd.errors import UserError
from localsgd.train.launch import heartbeat
from localsgd.train.launch.board import Board, Verdict
from localsgd.train.launch.judge import State, Status
from localsgd.train.launch.slurm import LOOPBACK
from localsgd.train.launch.store import open_store, serve_on
from localsgd.train.launch.world import Store, World

TOLD = (
    "{} has sent what this version of localsgd does not understand (its nesting is deep); start "
    "all ranks with the same version"
)
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


NO_STATUS = (
    "",
    "{",
    "1",
    "[1]",
    '{"pid": 1}',
    '[1, 2, "asleep", "who"]',
    "[[], 2, 3, 4]",
    '[Infinity, 1, "working", "a"]',
    '[1, 1e999, "working", "a"]',
    '["1", 1, "working", "a"]',
    '[1, 2, "working", ["a"]]',
    "[" * 100_000,
    "1" * 5000,
)
NO_VERDICT = ("", "[", "1", "[]", '{"text": 1}', '["a", 5]', '"ab"', "[" * 100_000)


def test_what_a_stranger_posts_is_no_rank_s(board: Board, stranger: dist.Store) -> None:
    # In one test, as a process that opens dozens of stores now and then waits for one in vain.
    for posted in NO_STATUS:
        stranger.set("status/1", posted)
        with pytest.raises(UserError, match=r"^rank 1 has sent .* with the same version$"):
            board.read([1])
    board.post(1, STATUS)
    for posted in NO_VERDICT:
        stranger.set("verdict", posted)
        with pytest.raises(UserError, match=r"^some rank has sent .* with the same version$"):
            board.read([1])


@pytest.mark.parametrize("key", ["status/1", "verdict"])
def test_no_thread_of_a_heartbeat_dies_without_a_word(
    place: Store, stranger: dist.Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks learn why, also those that do not read that status."""
    said: list[str] = []
    monkeypatch.setattr(heartbeat, "end_process", said.append)
    stranger.set(key, "[" * 100_000)
    beating = heartbeat.Heartbeat(World(0, 2, 0, 2, place), 1.0)
    beating.__enter__()
    beating._threads[0].join(20)
    beating._stopped.set()
    who = "rank 1" if key == "status/1" else "some rank"
    assert said == [TOLD.format(who)]
    posted = stranger.get("verdict").decode()
    assert posted == (json.dumps([TOLD.format(who), False]) if who == "rank 1" else "[" * 100_000)
