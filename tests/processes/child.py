"""A child of the launcher: `child.py MODE FOLDER`. Imports the package only where it is used."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

mode, folder = sys.argv[1], Path(sys.argv[2])
rank = int(os.environ["RANK"])
(folder / f"pid{rank}").write_text(str(os.getpid()))

if mode == "fine":
    print(f"rank {rank} fine")
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
    from localsgd.processes import say_last_words

    say_last_words("error: 5 workers can't be split into 2 processes")
    sys.exit(2)
elif mode == "joined":
    from localsgd.processes import joined

    with joined():
        (folder / f"ready{rank}").touch()
        time.sleep(60)
elif mode == "stopped":
    from localsgd.processes import Heartbeat, joined

    with joined() as world, Heartbeat(world, 3.0) as heartbeat:
        for _ in range(6000):
            time.sleep(0.01)
            heartbeat.beat()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
