"""Processes on the nodes of a laboratory that wait for work: one start serves many points."""

from __future__ import annotations

import pickle
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any

from benchmarks.network import torchrun
from benchmarks.network.laboratory import Laboratory

SECONDS = 120.0
"""Time limit of a call, and of the start."""

_LOOK_SECONDS = 0.5
_LINES = 12


class CrewFailed(RuntimeError):
    """A process raised, died or did not answer in time."""


class Crew:
    """P processes on each of N nodes, joined by gloo; made by `crew`.

    Args:
        connections: to them, by rank.
        agents: torchrun's, by node.
        log: what all of them print.
    """

    def __init__(
        self,
        connections: Sequence[Connection],
        agents: Sequence[subprocess.Popen[bytes]],
        log: Path,
    ) -> None:
        self._connections = connections
        self._agents = agents
        self._log = log
        self._calls = 0

    def call(
        self, function: Callable[..., Any], *arguments: Any, seconds: float = SECONDS
    ) -> list[Any]:
        """`function(*arguments)` in all processes at once; the results by rank.

        Args:
            function: found by its name in a module, as pickle does.
            arguments: the same for all.
            seconds: after which whoever has not answered is named.

        Raises:
            CrewFailed: with the traceback of whoever raised first. What the others still answer to
                this call is passed over; where they hang, the next call fails in its turn.
        """
        self._calls += 1
        # By itself, so that whoever cannot unpickle it can still say which call that was.
        work = pickle.dumps((function, arguments))
        job = pickle.dumps((self._calls, work))
        for connection in self._connections:
            connection.send_bytes(job)
        deadline = time.monotonic() + seconds
        answers: dict[int, Any] = {}
        while len(answers) < len(self._connections):
            missing = {c: rank for rank, c in enumerate(self._connections) if rank not in answers}
            for connection in wait(list(missing), _LOOK_SECONDS):
                rank = missing[connection]  # type: ignore[index]
                call, answer = self._received(rank, function.__name__)
                if call == self._calls:
                    answers[rank] = answer
            late = sorted(missing.values() - answers.keys())
            if late and time.monotonic() > deadline:
                self._fail(f"{function.__name__}: ranks {late} did not answer in {seconds:g} s")
            _check_agents(self._agents, self._log)
        return [answers[rank] for rank in range(len(self._connections))]

    def _received(self, rank: int, name: str) -> tuple[int, Any]:
        """The call that it answers, and the answer."""
        try:
            call, failure, result = pickle.loads(self._connections[rank].recv_bytes())
        except (EOFError, ConnectionResetError):
            self._fail(f"{name}: rank {rank} died")
        if failure and call == self._calls:
            raise CrewFailed(f"{name}: rank {rank}\n{failure}")
        return call, result

    def _fail(self, what: str) -> None:
        raise CrewFailed(f"{what}\n{_tail(self._log)}")


@contextmanager
def crew(
    laboratory: Laboratory, processes: int = 1, environment: Mapping[str, str] | None = None
) -> Generator[Crew]:
    """P processes on every node, started by torchrun; ranks follow the nodes.

    Args:
        laboratory: where.
        processes: P.
        environment: variables that they start with, beside torchrun's.
    """
    with tempfile.TemporaryDirectory(prefix="localsgd-crew-") as folder:
        # Namespaces share the file system, and so a socket in it: none of this crosses a link.
        address, log = str(Path(folder) / "socket"), Path(folder) / "log"
        program = ["-m", "benchmarks.network.member", address]
        count = laboratory.nodes * processes
        with (
            Listener(address, "AF_UNIX", backlog=count) as listener,
            log.open("wb") as output,
            torchrun.started(laboratory, program, processes, environment, output) as agents,
        ):
            connections = _connected(listener, count, agents, log)
            try:
                yield Crew(connections, agents, log)
            finally:
                for connection in connections:
                    connection.close()


def _connected(
    listener: Listener, count: int, agents: Sequence[subprocess.Popen[bytes]], log: Path
) -> list[Connection]:
    found: dict[int, Connection] = {}
    deadline = time.monotonic() + SECONDS
    while len(found) < count:
        # As `multiprocessing` keeps it: `accept` itself has no time limit.
        if wait([listener._listener._socket], _LOOK_SECONDS):  # type: ignore[attr-defined]
            connection = listener.accept()
            found[connection.recv()] = connection
        _check_agents(agents, log)
        if time.monotonic() > deadline:
            raise CrewFailed(f"{len(found)} of {count} processes started\n{_tail(log)}")
    return [found[rank] for rank in range(count)]


def _check_agents(agents: Sequence[subprocess.Popen[bytes]], log: Path) -> None:
    for node, agent in enumerate(agents):
        if agent.poll() is not None:
            raise CrewFailed(f"torchrun ended on node {node} ({agent.returncode})\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])
