"""What the processes of a run tell each other about themselves, and the board they post it on."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

import torch.distributed as dist

from localsgd.processes.world import Store


class State(StrEnum):
    """What the main thread of a process does."""

    WORKING = "working"  # local steps, each of which beats
    WAITING = "waiting"  # for others, or in something that may take its time
    DONE = "done"


@dataclass(frozen=True)
class Pulse:
    """A sign of life. It carries no time: whoever reads it goes by the clock of its own.

    Args:
        count: pulses so far.
        beats: steps and the like that the main thread has finished.
        state: what the main thread does.
        pid, host, parent: the process, its machine, and its parent process.
    """

    count: int = 0
    beats: int = 0
    state: State = State.WAITING
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    parent: int = field(default_factory=os.getppid)


@dataclass(frozen=True)
class Verdict:
    """That a process is lost to the run, and why.

    Args:
        text: one line, for people.
        rank: the process, or None for the launcher that keeps the store.
        fallen_silent: it gives no pulse any more, so it can't read this either.
        failed: it says itself that it has failed.
    """

    text: str
    rank: int | None = None
    fallen_silent: bool = False
    failed: bool = False


class Board:
    """The pulses of all processes and at most one verdict, in the store of the run.

    It has a connection of its own: the one of the process group may be busy for as long as a
    collective. A call can block for good when the machine that holds the store stops.

    Raises:
        torch.distributed.DistError: from any call, when the store is gone.
    """

    def __init__(self, store: Store, timeout_seconds: float) -> None:
        client = dist.TCPStore(
            store.host,
            store.port,
            is_master=False,
            timeout=timedelta(seconds=timeout_seconds),
            wait_for_workers=False,
        )
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = dist.PrefixStore(f"localsgd/heartbeat/{attempt}", client)
        self._known: set[int] = set()
        self._store.compare_set("verdict", "", "null")  # an unset key can't be read without waiting

    def post(self, rank: int, pulse: Pulse) -> None:
        self._store.set(f"pulse/{rank}", json.dumps(dataclasses.asdict(pulse)))

    def read(self, ranks: Iterable[int]) -> tuple[dict[int, Pulse], Verdict | None]:
        """The last pulse of those of `ranks` that have ever given one, and the verdict."""
        ranks = list(ranks)
        self._known |= {
            r for r in ranks if r not in self._known and self._store.check([f"pulse/{r}"])
        }
        heard = [rank for rank in ranks if rank in self._known]
        *pulses, verdict = self._store.multi_get([*(f"pulse/{r}" for r in heard), "verdict"])
        return {r: _pulse(p) for r, p in zip(heard, pulses, strict=True)}, _verdict(verdict)

    def judge(self, verdict: Verdict) -> Verdict:
        """Post `verdict` unless another process was first; the one that stands."""
        text = json.dumps(dataclasses.asdict(verdict))
        standing = _verdict(self._store.compare_set("verdict", "null", text))
        return standing or verdict


def _pulse(posted: bytes) -> Pulse:
    fields = json.loads(posted)
    state = State(fields.pop("state"))
    return Pulse(state=state, **fields)


def _verdict(posted: bytes) -> Verdict | None:
    fields = json.loads(posted)
    return None if fields is None else Verdict(**fields)
