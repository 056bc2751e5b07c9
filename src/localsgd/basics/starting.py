"""Ctrl-C while the command still imports torch, which takes seconds, or ends: never a traceback.

Imported before all else, and does nothing where `localsgd` is a library of another program.
"""

import os
import signal
import sys
from pathlib import Path

INTERRUPTED_EXIT = 130


def _is_command() -> bool:
    """Whether this process is `localsgd`, or `python -m localsgd`, known as `-m` until it runs."""
    called = next(iter(getattr(sys, "argv", [])), "")
    return Path(called).stem == "localsgd" or (called == "-m" and "localsgd" in sys.orig_argv)


def _leave(number: int, frame: object) -> None:
    if "LOCALSGD_LAUNCHER" not in os.environ:  # the launcher says it once
        os.write(2, b"localsgd: interrupted\n")
    os._exit(INTERRUPTED_EXIT)


def started() -> None:
    """From here on Ctrl-C is a KeyboardInterrupt again, which the command knows how to take."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ending() -> None:
    """From here on the command ends, and a second Ctrl-C has nothing more to ask for."""
    if _is_command():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)
