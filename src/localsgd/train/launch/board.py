"""A board in the run's store: the statuses of all ranks, and the verdict on a lost one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from localsgd.basics.messages import read_message
from localsgd.train.launch.judge import Status
from localsgd.train.launch.store import open_store
from localsgd.train.launch.world import World, attempt


class Verdict(NamedTuple):
    """Why the run has to end, in one line, and whether a rank reports this about itself."""

    text: str
    of_itself: bool = False


class Board:
    """The statuses of all ranks and at most one verdict.

    It has its own connection, since that of the process group may be busy for as long as a
    collective. A call can block for ever if the machine that holds the store stops.

    Raises:
        torch.distributed.DistError: from any call, if the store is gone.
        UserError: a rank has sent what is no status, or some rank what is no verdict.
    """

    def __init__(self, world: World, timeout_seconds: float) -> None:
        assert world.store is not None
        client = open_store(world.store, timedelta(seconds=timeout_seconds))
        self._store = dist.PrefixStore(f"localsgd/heartbeat/{attempt()}", client)
        self._known: set[int] = set()
        self._store.compare_set("verdict", "", "null")  # an unset key can't be read without waiting

    def post(self, rank: int, status: Status) -> None:
        self._store.set(f"status/{rank}", json.dumps(status))

    def read(self, ranks: Iterable[int]) -> tuple[dict[int, Status], Verdict | None]:
        """The last status of each of `ranks` that has posted one, and the verdict."""
        ranks = list(ranks)
        new = [rank for rank in ranks if rank not in self._known]
        self._known |= {rank for rank in new if self._store.check([f"status/{rank}"])}
        heard = [rank for rank in ranks if rank in self._known]
        *found, verdict = self._store.multi_get([*(f"status/{r}" for r in heard), "verdict"])
        pairs = zip(heard, found, strict=True)
        statuses = {rank: read_message(text, Status, f"rank {rank}") for rank, text in pairs}
        return statuses, _verdict(verdict)

    def judge(self, verdict: Verdict) -> Verdict:
        """Posts `verdict` unless another process was first; returns the one that holds."""
        standing = _verdict(self._store.compare_set("verdict", "null", json.dumps(verdict)))
        return standing or verdict


def _verdict(posted: bytes) -> Verdict | None:
    return read_message(posted, Verdict | None, "some rank")
