"""End a process from a thread, whatever its main thread is stuck in."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from localsgd.processes.last_words import PEER_LOST_EXIT, say_last_words
from localsgd.processes.pulse import Pulse, Verdict


def may_end(other: Pulse | None, own: Pulse) -> bool:
    """Whether `other` is a child of the same elastic agent on the same machine."""
    return (
        other is not None
        and "TORCHELASTIC_RUN_ID" in os.environ
        and (other.host, other.parent) == (own.host, own.parent)
    )


def end_process(verdict: Verdict, silent: Pulse | None = None) -> NoReturn:
    """Say the verdict and exit with status 3.

    Args:
        verdict: why.
        silent: a process to kill, since it has stopped and can't end itself. Left alone it would
            keep the launcher waiting, or wake up in a run that has gone on without it.
    """
    ended = [verdict.rank] if silent is not None and verdict.rank is not None else []
    say_last_words(verdict.text, ended=ended)
    if silent is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(silent.pid, signal.SIGKILL)
    _flush()
    os._exit(PEER_LOST_EXIT)


def _flush() -> None:
    """Flush what was printed, unless the main thread holds on to the stream."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()

    flusher = threading.Thread(target=flush, daemon=True)
    flusher.start()
    flusher.join(1.0)
