"""Workers of torchft in processes that can be killed, stopped and started while others train.

A model is one vector w, and batch b asks it to become `wanted(b)`: a local step is
`w <- w - rate (w - wanted(b))`, which a test can follow by hand (`fleet_by_hand.py`).
"""

from __future__ import annotations

import copy
import ctypes
import hashlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn

from benchmarks.network.laboratory import WIRE
from localsgd import LocalSGD
from localsgd.errors import PeerLost
from tests.distributed.harness import PRELOADED, path_for_children

RATE = 0.1
SECONDS = float(os.environ.get("LOCALSGD_TEST_SECONDS", "100"))
CROWDED = SECONDS / 100
"""How much longer limits are on a crowded machine."""

HEARTBEAT = 1.5 * CROWDED
"""Seconds after which a silent worker is gone."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


def wanted(batch: int, length: int) -> torch.Tensor:
    return torch.sin(torch.arange(length, dtype=torch.float64) * 0.37 + batch)


def tell(pipe: Connection, what: object) -> None:
    """By value: torch's own way to send tensors asks the sender again, which may be gone."""
    pipe.send_bytes(pickle.dumps(what))


class Vector(nn.Module):
    def __init__(self, length: int, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.w = nn.Parameter(torch.randn(length, generator=draw, dtype=torch.float64))


@dataclass(frozen=True)
class Plan:
    """What a worker does.

    Args:
        options: of `LocalSGD`.
        length: of the model.
        syncs: after which it finishes, unless it is told to end before.
        seed: of its model before it joins.
        pause: seconds in every local step.
        die_at: kills itself before this local step of the run.
        die_in: kills itself in this sync, so long after its sum has begun.
        spoiled_at: has weights that are not finite after this local step of the run.
        quorum: seconds to wait for the lighthouse.
        limit: seconds of a collective.
        hostname: its address.
        namespace: of the network, in which it lives.
    """

    options: dict[str, Any] = field(default_factory=lambda: {"local_steps": 4})
    length: int = 40
    syncs: int = 6
    seed: int = 0
    pause: float = 0.0
    die_at: int = -1
    die_in: tuple[int, float] = (-1, 0.0)
    spoiled_at: int = -1
    quorum: float = 60.0
    limit: float = 5.0 * CROWDED
    inner: dict[str, Any] = field(default_factory=dict)
    managed: dict[str, Any] = field(default_factory=dict)
    hostname: str = "127.0.0.1"
    namespace: str = ""


@dataclass(frozen=True)
class Seen:
    """What a worker saw after a sync."""

    sync: int
    model: torch.Tensor
    digest: str
    names: list[str]
    averaged: list[str]
    given: int
    step: int
    memory: torch.Tensor | None
    momentum: torch.Tensor | None
    changes: list[str]
    seconds: float


def enter(namespace: str) -> None:
    """Moves this process into a network namespace."""
    if not namespace:
        return
    with open(f"/run/netns/{namespace}") as found:
        assert ctypes.CDLL(None).setns(found.fileno(), 0x40000000) == 0  # CLONE_NEWNET


def work(name: str, lighthouse: str, plan: Plan, pipe: Connection) -> None:
    """Trains; tells `pipe` what it sees after each sync, and at last how it ended."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # It ends with its parent, wherever it waits.
    torch.set_num_threads(1)
    enter(plan.namespace)
    if os.path.exists("/sys/class/net/lo"):
        os.environ["GLOO_SOCKET_IFNAME"] = WIRE if plan.namespace else "lo"
    try:
        tell(pipe, ("ended", train(name, lighthouse, plan, pipe)))
    except Exception as error:
        tell(pipe, ("raised", f"{type(error).__name__}: {error}"))
    with suppress(EOFError):
        while True:  # Its store serves others until all have ended.
            pipe.recv()
    os._exit(0)


def train(name: str, lighthouse: str, plan: Plan, pipe: Connection) -> dict[str, Any]:
    from localsgd.integrations.joining import manager_at
    from localsgd.integrations.torchft import GroupPeers, Managed

    model = Vector(plan.length, plan.seed)
    quorum = timedelta(seconds=plan.quorum)
    manager = manager_at(
        plan.hostname,
        name,
        lighthouse,
        timedelta(seconds=plan.limit),
        quorum_timeout=quorum,
        connect_timeout=quorum,
        quorum_retries=20,
    )
    inner = torch.optim.SGD(model.parameters(), lr=RATE, **plan.inner)
    dying_in_sums(GroupPeers, manager, plan)
    tell(pipe, ("made", None))
    pipe.recv()  # Others have made theirs too.
    optimizer = LocalSGD(
        inner, model, fault_tolerance=Managed(manager, **plan.managed), **plan.options
    )
    members = optimizer.membership
    assert members is not None
    tell(pipe, ("saw", seen(optimizer)))
    last = plan.syncs
    while members.syncs < last and not members.left:
        said = pipe.recv() if pipe.poll() else last
        if said == "leave":
            members.leave()
        elif isinstance(said, timedelta):
            manager._quorum_timeout = said
        else:
            last = said
        if optimizer.steps == plan.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(plan.pause)
        optimizer.zero_grad()
        (model.w - wanted(members.batch, plan.length)).square().sum().mul(0.5).backward()
        if optimizer.steps == plan.spoiled_at and model.w.grad is not None:
            model.w.grad[0] = float("nan")
        before = members.syncs
        try:
            optimizer.step()
        except PeerLost:
            pickle.dumps((optimizer.state_dict(), model.state_dict()))
            assert model.w.isfinite().all()
            raise
        if members.syncs != before:
            tell(pipe, ("saw", seen(optimizer)))
    optimizer.finish()
    with optimizer.averaged_model():
        shown = model.w.detach().clone()
    return {
        "model": model.w.detach().clone(),
        "shown": shown,
        "steps": optimizer.steps,
        "left": members.left,
    }


def dying_in_sums(peers: Any, manager: Any, plan: Plan) -> None:
    """Kills this process while the sum of the model is under way, in the chosen sync."""
    sync, delay = plan.die_in
    whole = peers.sum

    def dying(self: Any, x: torch.Tensor) -> None:
        if manager.current_step() == sync and x.numel() > 1:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()
        whole(self, x)

    if sync >= 0:
        peers.sum = dying


def seen(optimizer: LocalSGD) -> Seen:
    members = optimizer.membership
    assert members is not None
    [row] = optimizer._rows
    [level] = optimizer._models.levels  # type: ignore[attr-defined]
    reducer = copy.deepcopy(level.reducer)
    count = len(members.averaged)
    reducer.regroup(count, count)  # All that it remembers is in one vector now.
    memory = reducer.state().get("error")
    momenta = [state.get("momentum_buffer") for state in optimizer.inner.state.values()]
    model = row.values[: next(iter(row.parameters)).numel()].clone()
    return Seen(
        members.syncs,
        model if model.numel() < 1000 else model[:50],
        hashlib.sha256(row.values.numpy().tobytes()).hexdigest(),
        [n.split(":")[0] for n in members.names],
        [n.split(":")[0] for n in members.averaged],
        members.given,
        members.step,
        None if memory is None else memory[0, 0, : model.numel()],
        None if not momenta or momenta[0] is None else momenta[0].clone(),
        [change.text for change in members.changes],
        time.monotonic(),
    )


class Worker:
    """A worker's process, and what it has told."""

    def __init__(self, name: str, lighthouse: str, plan: Plan) -> None:
        self.name = name
        self.plan = plan
        self._pipe, there = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=work, args=(name, lighthouse, plan, there))
        self.process.daemon = True
        with path_for_children():
            self.process.start()
        there.close()
        self.seen: list[Seen] = []
        self.told: list[str] = []
        self.end: tuple[str, Any] | None = None

    def listen(self) -> None:
        """Takes in what it has told so far."""
        try:
            while self.end is None and self._pipe.poll():
                kind, what = pickle.loads(self._pipe.recv_bytes())
                if kind == "saw":
                    self.seen.append(what)
                elif kind == "made":
                    self.told.append(kind)
                else:
                    self.end = (kind, what)
        except (EOFError, ConnectionResetError):
            self.end = ("died", None)

    def say(self, what: object) -> None:
        self._pipe.send(what)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid or 0, number)

    def close(self) -> None:
        self._pipe.close()
        self.process.kill()
        self.process.join()


def shine(namespace: str, bind: str, options: dict[str, int], pipe: Connection) -> None:
    from torchft.coordination import LighthouseServer

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    enter(namespace)
    lighthouse = LighthouseServer(bind=bind, **options)
    pipe.send(lighthouse.address())
    time.sleep(1e6)


class Fleet:
    """A lighthouse and workers."""

    def __init__(
        self,
        at_least: int = 1,
        heartbeat: float = HEARTBEAT,
        join: float = 30.0 * CROWDED,
        host: str = "127.0.0.1",
        namespace: str = "",
    ) -> None:
        self._host, self._namespace = host, namespace
        self.options = {
            "min_replicas": at_least,
            "join_timeout_ms": int(join * 1000),
            "heartbeat_timeout_ms": int(heartbeat * 1000),
            "quorum_tick_ms": 50,
        }
        self.port = "0"
        self.light()
        self.workers: list[Worker] = []

    def light(self) -> None:
        """A lighthouse begins, where the last one was."""
        here, there = CONTEXT.Pipe()
        arguments = (self._namespace, f"{self._host}:{self.port}", self.options, there)
        self.lighthouse = CONTEXT.Process(target=shine, args=arguments, daemon=True)
        with path_for_children():
            self.lighthouse.start()
        self.port = here.recv().rsplit(":", 1)[1]

    def darken(self) -> None:
        """The lighthouse is killed."""
        self.lighthouse.kill()
        self.lighthouse.join()

    def start(self, **plans: Plan) -> list[Worker]:
        """Starts workers by name, all together."""
        made = [Worker(name, f"http://{self._host}:{self.port}", p) for name, p in plans.items()]
        self.workers += made
        self.until(lambda: all("made" in w.told for w in made))
        for worker in made:
            worker.say("go")
        return made

    def until(
        self, reached: Callable[[], bool], seconds: float = SECONDS, may_pass: bool = False
    ) -> None:
        """Listens until something is so."""
        end = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > end:
                if may_pass:
                    return
                told = {w.name: (w.end, [s.sync for s in w.seen]) for w in self.workers}
                raise AssertionError(f"not within {seconds} s: {told}")
            for worker in self.workers:
                worker.listen()
            time.sleep(0.01)

    @property
    def living(self) -> list[Worker]:
        return [w for w in self.workers if w.end is None]

    @property
    def sync(self) -> int:
        """The last that anybody has seen."""
        return max((s.sync for w in self.workers for s in w.seen), default=0)

    def workers_now(self) -> int:
        """K, as the last sync has it."""
        return next(len(s.names) for w in self.workers for s in w.seen if s.sync == self.sync)

    def end(self, seconds: float = SECONDS) -> None:
        """Lets all end at one sync some rounds from now, and waits for it."""
        last = self.sync + 25
        for worker in self.living:
            worker.say(last)
        self.until_all_end(seconds)

    def until_all_end(self, seconds: float = SECONDS) -> None:
        self.until(lambda: all(w.end is not None for w in self.workers), seconds)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.darken()


@contextmanager
def fleet(**options: Any) -> Iterator[Fleet]:
    made = Fleet(**options)
    try:
        yield made
    finally:
        made.close()
