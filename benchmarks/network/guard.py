"""A process that removes the leftovers of a laboratory after its owner has ended.

    python -m benchmarks.network.guard PREFIX

Its standard input is a pipe whose other end the owner holds: it ends when the owner does, be it by
kill -9. Started in a session of its own, so that Ctrl-C at a terminal does not reach it.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from benchmarks.network.owner import namespaces, remove

ROOT = Path(__file__).parents[2]


def start_guard(prefix: str) -> subprocess.Popen[bytes]:
    """A guard over all namespaces whose names begin so. Close its `stdin` to dismiss it."""
    command = [sys.executable, "-m", "benchmarks.network.guard", prefix]
    return subprocess.Popen(command, stdin=subprocess.PIPE, cwd=ROOT, start_new_session=True)


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    prefix = sys.argv[1]
    sys.stdin.buffer.read()
    # Twice: the owner may have been killed while `ip` was adding a namespace for it.
    for _ in range(2):
        for name in namespaces(prefix):
            remove(name)


if __name__ == "__main__":
    main()
