"""How a process of a run ends: its exit status, its message of one line, and with its parent.

A process ends only itself. Under `localsgd`'s own launcher the message goes to the launcher, which
prints it once for the whole run; otherwise it goes to standard error. It is written into the file
that TORCHELASTIC_ERROR_FILE names, so that `torchrun`'s summary shows it too.
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

from localsgd.basics.messages import one_line

LAUNCHER = "LOCALSGD_LAUNCHER"
"""Environment variable: the process id of our launcher, in its children."""
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Environment variable: the file for a child's exit message."""

USER_ERROR_EXIT = 2
"""Exit status of a process that ends because of a user's mistake."""
PEER_LOST_EXIT = 3
"""Exit status of a process that stops because another was lost."""

_PARENT_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1
_once = threading.Lock()
_said = False


def is_launched() -> bool:
    """Whether our own launcher is the parent, and prints this process's exit message."""
    return os.environ.get(LAUNCHER) == str(os.getppid())


def print_exit_message(text: str) -> None:
    """Prints in one line why this process ends; only the first call has an effect."""
    global _said
    with _once:
        if _said:
            return
        _said = True
    text = one_line(text)
    if not (_write_error_file(text) and is_launched()):
        with suppress(OSError):  # its reader has gone
            print(text, file=sys.stderr, flush=True)


def _write_error_file(text: str) -> bool:
    name = os.environ.get(ERROR_FILE)
    if not name:
        return False
    try:
        whole = Path(name).with_suffix(".part")
        whole.write_text(json.dumps({"message": text, "timestamp": int(time.time())}))
        whole.replace(name)
    except (OSError, ValueError):  # `.` has no suffix
        return False
    return True


def end_process(text: str) -> NoReturn:
    """Prints why and exits with status 3, from any thread, even if the main thread is stuck."""
    print_exit_message(text)

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()

    # The main thread may hold a stream for ever.
    flusher = threading.Thread(target=flush, daemon=True)
    flusher.start()
    flusher.join(1.0)
    os._exit(PEER_LOST_EXIT)


def end_with_parent() -> None:
    """Ends this process once its launcher (ours or torchrun's) has died, if it has one."""
    if is_launched() or "TORCHELASTIC_RUN_ID" in os.environ:
        end_with(os.getppid())


def end_with(parent: int) -> None:
    """Ends this process once its parent, of process id `parent`, has died."""

    def wait_for_parent() -> None:
        while os.getppid() == parent:
            time.sleep(_PARENT_SECONDS)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=wait_for_parent, name="parent", daemon=True).start()


def kill_with_parent(parent: int) -> None:
    """Asks Linux to kill this process when the thread that started it ends.

    The request survives exec, so a child can make it before its program starts. Other systems have
    nothing like it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os._exit(128 + signal.SIGTERM)
