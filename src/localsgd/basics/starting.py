"""Handles Ctrl-C without a traceback while the command imports torch, or ends.

Importing torch takes seconds, so this module is imported first. It does nothing if `localsgd` is
used as a library.
"""

import os
import signal
import sys
from pathlib import Path

INTERRUPTED_EXIT = 130
TOO_EARLY = "interrupted before it began: nothing is kept yet, give the same command again"
"""What Ctrl-C leaves before a run has its folder."""


def _is_command() -> bool:
    """Whether this process is `localsgd`, or `python -m localsgd`, known as `-m` until it runs."""
    called = next(iter(getattr(sys, "argv", [])), "")
    return Path(called).stem == "localsgd" or (called == "-m" and "localsgd" in sys.orig_argv)


def _leave(number: int, frame: object) -> None:
    if os.environ.get("LOCALSGD_LAUNCHER") != str(os.getppid()):  # the launcher says it once
        os.write(2, f"localsgd: {TOO_EARLY}\n".encode())
    os._exit(INTERRUPTED_EXIT)


def started() -> None:
    """Makes Ctrl-C a KeyboardInterrupt again, which the command can handle from now on."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ending() -> None:
    """Ignores Ctrl-C from now on, since the command is ending."""
    if _is_command():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)
