"""`ip` and `tc`, and what they say when they can't.

Nothing here, or in what it imports, is slow.
"""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import contextmanager

from benchmarks.network.refusal import Refused


class CommandFailed(RuntimeError):
    """A command of iproute2 that ended with an error; the text is its first line."""


def ip(*arguments: str) -> str:
    """What `ip ARGUMENTS` prints."""
    return _output("ip", *arguments)


def tc(*arguments: str) -> str:
    """What `tc ARGUMENTS` prints."""
    return _output("tc", *arguments)


@contextmanager
def needed(what: str) -> Generator[None]:
    """A refusal that names `what` the kernel lacks, for a command that fails inside."""
    try:
        yield
    except CommandFailed as error:
        raise Refused(
            f"the laboratory needs {what}, and this kernel or container refuses ({error}); run it "
            "on a Linux machine, or in a virtual one, whose kernel has them"
        ) from error


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        said = lines[0] if lines else f"exit status {done.returncode}"
        raise CommandFailed(f"{' '.join(command)}: {said}")
    return done.stdout
