"""`localsgd run --fault-tolerant`: workers of a user's script, started again when they die."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

from tyro.conf import Suppress

from localsgd.basics.units import plural
from localsgd.errors import UserError

FLAG = "--fault-tolerant"
JOIN_SECONDS, BEAT_SECONDS = 600.0, 5.0
"""Of a lighthouse that is started here, as on the page on workers that come and go."""


@dataclass(frozen=True)
class FaultTolerantCommand:
    """Start workers of a script of your own, and start those again that die.

    What follows the options is the script and its arguments. It makes its optimizer by
    LocalSGD(..., fault_tolerance=Managed()), with Managed of localsgd.integrations.torchft.
    """

    script: Suppress[tuple[str, ...]] = ()
    processes: int = 2
    """Workers to start on this machine, a process each."""
    lighthouse: str = ""
    """HOST:PORT of torchft's lighthouse, where workers of several machines meet; TORCHFT_LIGHTHOUSE
    if not given. Without both, one is started here, for this machine alone."""
    workers: int | None = None
    """K as planned, over all machines: schedules count steps of so many batches. All machines must
    give the same. --processes if the lighthouse is started here."""
    restarts: int = 3
    """How often each worker is started again."""

    def check(self) -> None:
        """Refuses what can't work, before anything starts."""
        for name, least in (("processes", 1), ("workers", 1), ("restarts", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name} {value} is too small; give {least} or more")
        if not self.script:
            raise UserError(
                f"{FLAG} starts a script of yours, and none was given; write `localsgd run {FLAG} "
                "--processes 3 train.py`"
            )
        if not Path(self.script[0]).is_file():
            raise UserError(f"{self.script[0]} is no file; give the script that is to be started")


def split(arguments: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our own options, and the script with its arguments, which are not ours to read."""
    known = {f"--{field.name}" for field in fields(FaultTolerantCommand)}
    own, rest = [], list(arguments)
    while rest and rest[0].startswith("-"):
        own.append(rest.pop(0))
        if own[-1] in known and rest:
            own.append(rest.pop(0))
    return own, tuple(rest)


def run(command: FaultTolerantCommand) -> int:
    """Starts the workers, and returns the exit status once all have ended."""
    command.check()
    from localsgd.integrations import joining

    os.environ.setdefault("RUST_LOG", "warn")  # torchft logs every request otherwise
    joining.check_installed()
    from localsgd.train.launch import find_world
    from localsgd.train.launch.slurm import LOOPBACK
    from localsgd.train.launch.store import serve_on
    from localsgd.train.launch.tending import Tended, say

    if find_world().size > 1:
        raise UserError(
            f"{FLAG} can't be used under torchrun or srun, which start the processes themselves; "
            "run it once on each machine"
        )
    given = command.lighthouse or os.environ.get(joining.LIGHTHOUSE, "")
    with ExitStack() as held:
        if given:
            place = joining.place_of(given)
            joining.reached(place)
        else:
            place = held.enter_context(_lighthouse())
        gate, port = serve_on(LOOPBACK)
        names = _names(command.processes, alone=not given)
        shared = _environment(command.processes, alone=not given)
        shared |= {joining.LIGHTHOUSE: place, joining.GATE: str(port)}
        shared.pop(joining.AGAIN, None)  # if this command is a worker of another
        workers = command.workers or (None if given else command.processes)
        if workers is not None:
            shared[joining.WORKERS] = str(workers)

        def environment(name: str, again: bool) -> dict[str, str]:
            return {**shared, joining.NAME: name, **({joining.AGAIN: "1"} if again else {})}

        say(f"{plural(command.processes, 'worker')} ({', '.join(names)}), lighthouse {place}")
        program = [sys.executable, *command.script]
        return Tended(program, names, environment, gate, command.restarts).run()


@contextmanager
def _lighthouse() -> Generator[str]:
    """The address of a lighthouse in this process, on loopback."""
    from torchft.coordination import LighthouseServer

    from localsgd.train.launch.slurm import LOOPBACK

    server = LighthouseServer(
        bind=f"{LOOPBACK}:0",
        min_replicas=1,  # One lighthouse makes one run, and who is started again begins none.
        join_timeout_ms=int(1000 * JOIN_SECONDS),
        heartbeat_timeout_ms=int(1000 * BEAT_SECONDS),
    )
    try:
        yield f"http://{LOOPBACK}:{server.address().rsplit(':', 1)[1]}"
    finally:
        server.shutdown()


def _names(processes: int, alone: bool) -> list[str]:
    """Unique among all machines; ranks follow from them."""
    host = "w" if alone else f"{socket.gethostname()}-w"
    return [f"{host}{number:0{len(str(processes - 1))}}" for number in range(processes)]


def _environment(processes: int, alone: bool) -> dict[str, str]:
    """This process's, with what torch needs to know of its workers."""
    from localsgd.train.launch.join import cores
    from localsgd.train.launch.store import loopback_interface

    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores() // processes)),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # stores warn with stack traces when a worker goes
    }
    interface = loopback_interface() if alone else None
    given = {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
    return {**defaults, **os.environ, **given}
