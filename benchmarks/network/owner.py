"""The owner of a network namespace, so that leftovers of a killed process can be recognised.

All that the laboratory makes has a name that begins with the owner's process id and the time at
which that process started (a process id alone is given out again). Interfaces exist inside of such
namespaces only, so nothing outside of them is ever touched.
"""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.network.shell import CommandFailed, ip

NAMES = re.compile(r"lsgd-(?P<pid>\d+)-(?P<started>\d+)-.+")
PLACE = Path("/run/netns")
"""The folder in which `ip netns` keeps its names."""

_ATTEMPTS = 50
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True)
class Owner:
    """A process.

    Args:
        pid: its number.
        started: when it started, in ticks since the machine did.
    """

    pid: int
    started: int

    @staticmethod
    def this() -> Owner:
        pid = os.getpid()
        return Owner(pid, _started(pid) or 0)

    @property
    def prefix(self) -> str:
        """The prefix of the names of everything that it makes."""
        return f"lsgd-{self.pid}-{self.started}-"

    @property
    def lives(self) -> bool:
        return _started(self.pid) == self.started


def owner_of(name: str) -> Owner | None:
    """The owner of a namespace; `None` if the laboratory didn't make it."""
    match = NAMES.fullmatch(name)
    return Owner(int(match["pid"]), int(match["started"])) if match else None


def namespaces(prefix: str = "lsgd-") -> list[str]:
    """Names of the laboratory's namespaces with this prefix."""
    found = PLACE.iterdir() if PLACE.is_dir() else ()
    names = sorted(path.name for path in found)
    return [name for name in names if name.startswith(prefix) and owner_of(name)]


def remove_stale() -> list[str]:
    """Removes namespaces whose owners have ended; returns their names."""
    stale = [name for name in namespaces() if not _lives(name)]
    for name in stale:
        remove(name)
    return stale


def remove(name: str) -> None:
    """Ends all processes in a namespace of the laboratory, and removes it.

    Its interfaces go with it, and with them the other ends of its links.
    """
    if owner_of(name) is None:
        raise ValueError(f"{name} is not the laboratory's")
    # Another process, such as the guard of a killed owner, may be at it too.
    with suppress(CommandFailed):
        _end_processes(name)
    with suppress(CommandFailed):
        ip("netns", "delete", name)


def _end_processes(name: str) -> None:
    for _ in range(_ATTEMPTS):
        pids = [int(pid) for pid in ip("netns", "pids", name).split()]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def _lives(name: str) -> bool:
    owner = owner_of(name)
    return owner is not None and owner.lives


def _started(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; `None` if there is no such process, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # The name before it may hold anything.
    return None if fields[0] in "ZX" else int(fields[19])
