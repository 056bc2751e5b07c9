"""A process whose launcher is gone ends too, so that a killed launcher leaves nothing running."""

from __future__ import annotations

import os
import signal
import threading
import time

from localsgd.processes.last_words import LAUNCHER

_EVERY_SECONDS = 1.0
_GRACE_SECONDS = 5.0


def end_with_parent() -> None:
    """Watch, from a thread, that the launcher lives, where there is one (ours or torchrun's).

    Once it has died this process gets SIGTERM and, 5 seconds later, ends whatever it does.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(int(os.environ.get(LAUNCHER) or os.getppid()))


def end_with(parent: int) -> None:
    """As `end_with_parent`, for whatever parent; to be called by its child, with its process id."""
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_EVERY_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_SECONDS)
    os._exit(128 + signal.SIGTERM)
