"""Starts P processes of a run on this machine, and ends them together.

They connect through a store that this process keeps on loopback. A failure gives one line that says
what went wrong and an exit status with a meaning, and leaves no process behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from localsgd.errors import DIVERGED_EXIT
from localsgd.train.launch.ending import (
    ERROR_FILE,
    LAUNCHER,
    PEER_LOST_EXIT,
    USER_ERROR_EXIT,
    kill_with_parent,
)
from localsgd.train.launch.slurm import LOOPBACK
from localsgd.train.launch.store import loopback_interface, serve_on

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_GRACE_SECONDS = 10.0  # between a signal, or SIGTERM, and SIGKILL
POLL_SECONDS = 0.05
_SETTLE_SECONDS = 0.5  # time for other processes to end for the same reason as the first


def launch(
    command: Sequence[str], processes: int, *, program: Sequence[str] = ("-m", "localsgd")
) -> int:
    """Runs `processes` copies of `python -m localsgd COMMAND` as one run, and waits for them.

    If one copy fails, the others are ended. Ctrl-C and SIGTERM are passed on to all; they have 10
    seconds to write what they need. The copies import nothing from the current folder, and none
    outlives this process.

    Args:
        command: arguments of `program`, the same for every process.
        processes: P, at least 1.
        program: what Python runs.

    Returns:
        The exit status: 0; 2 for a user's mistake, whose message is printed once; 3 if a process
        was killed or hung; 128 + the signal's number (130 for Ctrl-C) if a signal stopped this
        process; otherwise 1. Unless it is 0 or a signal's, one line on stderr says why.
    """
    with tempfile.TemporaryDirectory(suffix="-localsgd") as folder:
        store, port = serve_on(LOOPBACK)
        messages = [Path(folder) / f"{rank}.json" for rank in range(processes)]
        environments = [
            _environment(rank, processes, port, messages[rank]) for rank in range(processes)
        ]
        children = Children()
        with children.signals_passed_on():
            children.start([sys.executable, *program, *command], environments)
            failed = children.wait()
        del store  # it outlives the children
        if not failed:
            return 0
        if children.stopped_by is not None:
            return 128 + children.stopped_by
        cause = first_cause(
            [Failure(r, pid, code, _message(messages[r])) for r, pid, code in failed]
        )
    for line in cause.lines:
        print(line, file=sys.stderr, flush=True)
    return cause.status


def _environment(rank: int, size: int, port: int, message: Path) -> dict[str, str]:
    defaults = {
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # the store warns with stack traces when a peer goes
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    given = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        ERROR_FILE: str(message),
        LAUNCHER: str(os.getpid()),
        "PYTHONSAFEPATH": "1",
    }
    interface = loopback_interface()
    if interface is not None:
        given |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return {**defaults, **os.environ, **given}


def _message(path: Path) -> str | None:
    try:
        return json.loads(path.read_text())["message"]
    except (OSError, ValueError):
        return None


class Children:
    """Processes that are started and ended together; no other process is ever ended.

    Attributes:
        stopped_by: the signal that stopped this process, if one has.
        children: the processes, in the order of their ranks.
    """

    def __init__(self) -> None:
        self.stopped_by: int | None = None
        self._kill_at: float | None = None
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], environments: Sequence[dict[str, str]]) -> None:
        """Starts a process for each of `environments`."""
        try:
            for place, environment in enumerate(environments):
                self.put(place, command, environment)
        except BaseException:
            self.send(signal.SIGKILL)
            raise

    def put(self, place: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts the process of rank `place`, also in place of one that has ended."""
        parent = os.getpid()
        # In its own session it gets Ctrl-C only from this process, and so only once.
        child = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: kill_with_parent(parent),
        )
        self.children[place : place + 1] = [child]
        if self.stopped_by is not None:
            child.send_signal(self.stopped_by)

    def wait(self) -> list[tuple[int, int, int]]:
        """Waits until all have ended; returns rank, process id and status of each that failed.

        A process that was ended because of another's failure is left out.
        """
        failed: dict[int, int] = {}
        end_at: float | None = None
        while True:
            ended = {r: code for r, c in enumerate(self.children) if (code := c.poll()) is not None}
            if end_at is None or time.monotonic() < end_at:
                failed |= {rank: code for rank, code in ended.items() if code != 0}
                if failed and end_at is None:
                    end_at = time.monotonic() + _SETTLE_SECONDS
            elif self._kill_at is None:
                self.send(signal.SIGTERM)
            if len(ended) == len(self.children):
                return [(rank, self.children[rank].pid, code) for rank, code in failed.items()]
            self.kill_overdue()
            time.sleep(POLL_SECONDS)

    def kill_overdue(self) -> None:
        """Kills all, 10 seconds after they were told to end."""
        if self._kill_at is not None and time.monotonic() > self._kill_at:
            self.send(signal.SIGKILL)

    @contextmanager
    def signals_passed_on(self) -> Generator[None]:
        """Passes signals that stop this process on to the children; Ctrl-Z and `fg` too.

        What is ignored stays so, for the children as well: hanging up after `nohup`, Ctrl-C in the
        background of a script.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopped_by = self.stopped_by or number
            self.send(number)

        def pause(number: int, frame: FrameType | None) -> None:
            self.send(signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGSTOP)
            self.send(signal.SIGCONT)

        handlers = dict.fromkeys(_PASSED_ON, stop) | {signal.SIGTSTP: pause}
        before = {
            number: signal.signal(number, handler)
            for number, handler in handlers.items()
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def send(self, number: int) -> None:
        """Sends a signal to all; after one that ends them, those who stay are overdue in 10 s."""
        if number not in (signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL):
            self._kill_at = self._kill_at or time.monotonic() + _GRACE_SECONDS
        for child in self.children:
            child.send_signal(number)


def how_ended(exit_code: int) -> str:
    """In words; a negative exit code is that of a signal."""
    if exit_code >= 0:
        return f"failed with exit status {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


@dataclass(frozen=True)
class Failure:
    """A process that did not end with 0.

    Args:
        rank: its rank.
        pid: its process id.
        exit_code: its exit status, or minus the number of the signal that killed it.
        message: its exit message, if any.
    """

    rank: int
    pid: int
    exit_code: int
    message: str | None = None

    def __str__(self) -> str:
        """One line that says which process it was and how it ended."""
        why = f": {self.message}" if self.message and self.exit_code >= 0 else ""
        hint = "; was there enough memory?" if self.exit_code == -signal.SIGKILL else ""
        return f"rank {self.rank} (pid {self.pid}) {how_ended(self.exit_code)}{why}{hint}"


@dataclass(frozen=True)
class Cause:
    """The lines to print, and the launcher's exit status."""

    lines: tuple[str, ...]
    status: int


def first_cause(failures: Sequence[Failure]) -> Cause:
    """The cause among `failures`, which are in the order in which they happened.

    One failure brings others, as peers notice the loss. So the first of these counts: users'
    mistakes, each message once; a process that died by itself; one that found another lost.
    """
    mistakes = [f for f in failures if f.exit_code in (USER_ERROR_EXIT, DIVERGED_EXIT)]
    if mistakes:
        messages = dict.fromkeys(mistake.message for mistake in mistakes if mistake.message)
        return Cause(tuple(messages), mistakes[0].exit_code)
    first = min(failures, key=lambda failure: failure.exit_code == PEER_LOST_EXIT)
    if first.exit_code == PEER_LOST_EXIT and first.message:
        return Cause((first.message,), PEER_LOST_EXIT)
    return Cause((str(first),), PEER_LOST_EXIT if first.exit_code < 0 else 1)
