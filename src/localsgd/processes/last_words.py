"""The one line that a process says when it ends early.

Under `localsgd`'s own launcher the line goes to the launcher, which prints it once for the whole
run; anywhere else it goes to stderr. The way there is the file that the elastic agent names to each
child (TORCHELASTIC_ERROR_FILE), so that `torchrun`'s summary shows the line too.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

LAUNCHER = "LOCALSGD_LAUNCHER"
"""Environment variable: the process id of our launcher, in its children."""

PEER_LOST_EXIT = 3
"""Exit status of a process that stops because another was lost."""

_once = threading.Lock()
_said = False


def is_launched() -> bool:
    """Whether our own launcher is the parent, and prints what a child says."""
    return os.environ.get(LAUNCHER) == str(os.getppid())


def say_last_words(text: str, *, ended: Sequence[int] = ()) -> None:
    """Say why this process ends, once: what comes second is dropped.

    Args:
        text: one line.
        ended: ranks that this process has killed because they hung.
    """
    global _said
    with _once:
        if _said:
            return
        _said = True
    handed_over = _write_error_file(text, ended)
    if not (handed_over and is_launched()):
        print(text, file=sys.stderr, flush=True)


def _write_error_file(text: str, ended: Sequence[int]) -> bool:
    name = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not name:
        return False
    words = {"message": text, "timestamp": int(time.time()), "ended": list(ended)}
    path = Path(name)
    whole = path.with_suffix(".part")
    try:
        whole.write_text(json.dumps(words))
        whole.replace(path)
    except OSError:
        return False
    return True
