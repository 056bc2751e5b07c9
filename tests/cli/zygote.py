"""Forks processes of the command line: the package is imported once here, which takes seconds.

One request a line on stdin; two answers a line on stdout, the process ids and then the statuses.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from localsgd.cli import main
from localsgd.train.engine.execution import Execution

_LATE = (
    "matplotlib.pyplot",
    "sklearn.datasets",
    "torch._dynamo",
    "torch.distributed.launcher.api",
)
"""What a process would import when it comes to that."""


def serve() -> None:
    torch.set_num_threads(1)
    for name in ("localsgd.cli.training", "localsgd.cli.showing", *_LATE):
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        pids = [_start(request, rank) for rank in range(len(request["processes"]))]
        print(json.dumps(pids), flush=True)
        print(json.dumps(_collect(pids, request["seconds"])), flush=True)


def _start(request: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    arguments, environment, at_step = request["processes"][rank]
    for descriptor, stream in ((1, "out"), (2, "err")):
        path = Path(request["folder"]) / f"{rank}.{stream}"
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.update(environment)
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(request["folder"])
    if at_step:
        _signal_at(*at_step)
    status = 1
    try:
        status = main(arguments)
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _signal_at(wanted: int, name: str) -> None:
    """Sends this process a signal in the middle of a run, once it has made a number of steps."""
    after_step = Execution._after_step

    def instead(self: Execution) -> None:
        if self.assembly.workers.step == wanted:
            os.kill(os.getpid(), signal.Signals[name])
        after_step(self)

    Execution._after_step = instead  # type: ignore[method-assign]


def _collect(pids: list[int], seconds: float) -> list[int | None]:
    """Statuses; None for a process that was stopped, or did not end in time, and so is killed."""
    statuses: dict[int, int] = {}
    stopped: set[int] = set()
    end = time.monotonic() + seconds
    while len(statuses) + len(stopped) < len(pids) and time.monotonic() < end:
        for pid in set(pids) - statuses.keys():
            done, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
            if done and os.WIFSTOPPED(status):
                stopped.add(pid)
            elif done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    for pid in set(pids) - statuses.keys():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return [statuses.get(pid) for pid in pids]


if __name__ == "__main__":
    serve()
