"""How a process of a run ends: its exit status, the one line that it says, and with its parent.

A process ends nobody but itself. Under `localsgd`'s own launcher the line goes to the launcher,
which prints it once for the whole run; anywhere else it goes to standard error. The way there is
the file that TORCHELASTIC_ERROR_FILE names, so that `torchrun`'s summary shows the line too.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

LAUNCHER = "LOCALSGD_LAUNCHER"
"""Environment variable: the process id of our launcher, in its children."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable: where a child leaves its line."""

USER_ERROR_EXIT = 2
"""Exit status of a process that ends for a user's mistake."""
PEER_LOST_EXIT = 3
"""Exit status of a process that stops because another was lost."""

_PARENT_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_once = threading.Lock()
_said = False


def is_launched() -> bool:
    """Whether our own launcher is the parent, and prints what a child says."""
    return os.environ.get(LAUNCHER) == str(os.getppid())


def say_last_words(text: str) -> None:
    """Say in one line why this process ends, once: what comes second is dropped."""
    global _said
    with _once:
        if _said:
            return
        _said = True
    text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
    if not (_write_error_file(text) and is_launched()):
        with suppress(OSError):  # its reader has gone
            print(text, file=sys.stderr, flush=True)


def _write_error_file(text: str) -> bool:
    name = os.environ.get(ERROR_FILE)
    if not name:
        return False
    whole = Path(name).with_suffix(".part")
    try:
        whole.write_text(json.dumps({"message": text, "timestamp": int(time.time())}))
        whole.replace(name)
    except OSError:
        return False
    return True


def end_process(text: str) -> NoReturn:
    """Say why and exit with status 3 from any thread, whatever the main thread is stuck in."""
    say_last_words(text)

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()

    # The main thread may hold on to a stream for good.
    flusher = threading.Thread(target=flush, daemon=True)
    flusher.start()
    flusher.join(1.0)
    os._exit(PEER_LOST_EXIT)


def end_with_parent() -> None:
    """End this process once its launcher has died, where there is one (ours or torchrun's)."""
    if LAUNCHER in os.environ or "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(int(os.environ.get(LAUNCHER) or os.getppid()))


def end_with(parent: int) -> None:
    """As `end_with_parent`, for whatever parent; to be called by its child, with its process id."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def kill_with_parent(parent: int) -> None:
    """Have the system kill this process when the thread that started it ends; Linux alone has that.

    It holds through exec: what a child calls before its program starts holds from its first
    instruction on.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(128 + signal.SIGTERM)
