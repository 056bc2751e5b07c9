"""Runs a function in P processes that gloo joins: `results = run(4, function, *arguments)`.

The processes are forked from one server that has imported torch already, and stay for the next
call; the process group is a fresh one for each. What a process raises comes back as its traceback,
and a call that takes too long ends with the names of those who hang.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = float(os.environ.get("LOCALSGD_TEST_SECONDS", "100"))
"""A call's limit, unless it says otherwise; raise it on a crowded machine."""


PRELOADED = ["torch.distributed", "torch._dynamo", "pytest", "hypothesis", "tests.cases"]
"""What children need, imported once: the first optimizer of a process imports dynamo."""


class ChildFailed(AssertionError):
    """A process raised, died or did not answer; the text has its traceback."""


class Crew:
    """P processes that wait for work."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._folder = tempfile.TemporaryDirectory(prefix="localsgd-crew-")
        self._calls = 0
        self.connections: list[Connection] = []
        self._processes = []
        for rank in range(processes):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, processes, there), daemon=True)
            with path_for_children():
                process.start()
            there.close()
            self.connections.append(here)
            self._processes.append(process)
        for connection in self.connections:
            connection.recv_bytes()  # It has started; limits count from here.

    def run(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> list:
        self._calls += 1
        store = str(Path(self._folder.name) / f"call-{self._calls}")
        job = pickle.dumps((store, seconds, pickle.dumps((function, arguments))))
        for connection in self.connections:
            connection.send_bytes(job)
        return self._answers(function.__name__, seconds)

    def _answers(self, name: str, seconds: float) -> list:
        deadline = time.monotonic() + seconds
        answers: dict[int, Any] = {}
        while len(answers) < len(self.connections):
            missing = {c: r for r, c in enumerate(self.connections) if r not in answers}
            ready: list[Any] = wait(list(missing), max(0.0, deadline - time.monotonic()))
            if not ready:
                self.close()
                raise ChildFailed(
                    f"{name}: ranks {sorted(missing.values())} of {len(self.connections)} did not "
                    f"answer within {seconds} seconds"
                )
            failures = []
            for connection in ready:
                rank = missing[connection]
                failure, answers[rank] = _received(connection)
                if failure:
                    failures.append(f"{name}: rank {rank} of {len(self.connections)}\n{failure}")
            if failures:
                self.close()
                raise ChildFailed("\n".join(failures))
        return [answers[rank] for rank in range(len(self.connections))]

    def close(self) -> None:
        if _crews.get(len(self.connections)) is self:
            del _crews[len(self.connections)]
        for connection in self.connections:
            connection.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._folder.cleanup()


@contextmanager
def path_for_children() -> Iterator[None]:
    """The server that forks them imports from where this process does."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


_crews: dict[int, Crew] = {}


def run(
    processes: int, function: Callable[..., Any], *arguments: Any, seconds: float = SECONDS
) -> list:
    """`function(*arguments)` in each of P processes with a gloo group; their results by rank.

    Args:
        processes: P.
        function: found by its name in a module, as pickle does.
        arguments: the same for all; `dist.get_rank()` tells the processes apart.
        seconds: after which whoever has not answered is named and all are killed.
    """
    crew = _crews.get(processes)
    if crew is None:
        crew = _crews[processes] = Crew(processes)
    return crew.run(function, arguments, seconds)


@atexit.register
def close() -> None:
    """Ends all processes."""
    for crew in list(_crews.values()):
        crew.close()


def _received(connection: Connection) -> tuple[str, Any]:
    """(traceback, "" where there is none; result)."""
    try:
        return pickle.loads(connection.recv_bytes())
    except (EOFError, ConnectionResetError):
        return "the process died", None


def _serve(rank: int, processes: int, connection: Connection) -> None:
    if Path("/sys/class/net/lo").exists():
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    gc.freeze()  # What was imported is not looked at again.
    connection.send_bytes(b"ready")
    while True:
        try:
            store, seconds, call = pickle.loads(connection.recv_bytes())
            connection.send_bytes(_result(rank, processes, store, seconds, call))
        except (EOFError, BrokenPipeError, ConnectionResetError):  # nobody waits any more
            return


def _result(rank: int, processes: int, store: str, seconds: float, call: bytes) -> bytes:
    """What the call gives. Its groups stay until the next one: others may still use them."""
    try:
        if dist.is_initialized():
            dist.destroy_process_group()
            gc.collect()  # Gloo's threads end with the last reference to their group.
        function, arguments = pickle.loads(call)
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=seconds),
        )
        torch.manual_seed(0)
        return pickle.dumps(("", function(*arguments)))
    except BaseException:
        return pickle.dumps((traceback.format_exc(), None))
