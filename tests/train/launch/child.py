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
    for name, path in (
        ("localsgd", folder),
        ("localsgd.train", folder / "train"),
        ("localsgd.train.launch", folder / "train" / "launch"),
    ):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [str(path)]


mode, folder = sys.argv[1], Path(sys.argv[2])
rank = int(os.environ["RANK"])
(folder / f"pid{rank}").write_text(str(os.getpid()))

if mode == "fine":
    sys.stdout.write(f"rank {rank} fine\n")  # at once; print may write the line's end apart
elif mode == "listens":
    sys.path.append(str(Path(__file__).parent))  # which children of the launcher do not have
    from scenarios import listening

    from localsgd.train.launch import joined

    with joined():
        parent = listening(os.getppid()) if rank == 0 else set()
        sys.stdout.write("".join(f"{address}\n" for address in listening(os.getpid()) | parent))
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
    from localsgd.train.launch.ending import print_exit_message

    print_exit_message("error: 5 workers can't be split into 2 processes")
    sys.exit(2)
elif mode == "deaf":
    (folder / f"ready{rank}").touch()
    time.sleep(60)
elif mode == "safe":
    sys.stdout.write(f"{sys.flags.safe_path}\n")
elif mode == "saving":
    # As a run does: the signal is noted, and the step at hand ends.
    asked: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    (folder / f"ready{rank}").touch()
    while not asked:
        time.sleep(0.01)
    (folder / f"saving{rank}").touch()
    while len(asked) < 2:
        time.sleep(0.01)
    (folder / f"saved{rank}").touch()
    sys.exit(130)
elif mode == "stopped":
    from localsgd.train.launch import Heartbeat, joined

    with joined() as world, Heartbeat(world, 3.0) as heartbeat:
        for step in range(6000):
            time.sleep(0.01)
            heartbeat.beat(step)
            if rank == 1 and step == 200:
                (folder / "stopped").touch()
                os.kill(os.getpid(), signal.SIGSTOP)
