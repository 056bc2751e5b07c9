"""A child of the launcher: `child.py MODE FOLDER`. Imports torch only where it must, for time."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
import types
from pathlib import Path


def without_torch() -> None:
    """Let modules be imported without the `__init__` of their packages, which need torch."""
    spec = importlib.util.find_spec("localsgd")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    for name, path in (("localsgd", folder), ("localsgd.processes", folder / "processes")):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]


mode, folder = sys.argv[1], Path(sys.argv[2])
rank = int(os.environ["RANK"])
(folder / f"pid{rank}").write_text(str(os.getpid()))

if mode == "fine":
    sys.stdout.write(f"rank {rank} fine\n")  # at once; print may write the line's end apart
elif mode == "killed":
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
elif mode == "interrupted":
    try:
        (folder / f"ready{rank}").touch()
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        (folder / f"saved{rank}").touch()
        sys.exit(130)
elif mode == "mistake":
    without_torch()
    from localsgd.processes.last_words import say_last_words

    say_last_words("error: 5 workers can't be split into 2 processes")
    sys.exit(2)
elif mode == "orphaned":
    without_torch()
    from localsgd.processes.parent import end_with_parent

    end_with_parent()
    (folder / f"ready{rank}").touch()
    time.sleep(60)
elif mode == "stopped":
    from localsgd.processes import Heartbeat, joined

    with joined() as world, Heartbeat(world, 3.0) as heartbeat:
        for _ in range(6000):
            time.sleep(0.01)
            heartbeat.beat()
            if rank == 1:
                (folder / "stopped").touch()
                os.kill(os.getpid(), signal.SIGSTOP)
