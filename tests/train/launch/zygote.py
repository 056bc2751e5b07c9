"""Forks the processes of a test: the package is imported once here, which takes seconds.

One request a line on stdin; two answers a line on stdout, the process ids and then the outcome.
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

sys.path.insert(0, str(Path(__file__).parent))

scenarios = importlib.import_module("scenarios")  # and with it torch and the package


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        pids = [_start(request, rank) for rank in range(len(request["environments"]))]
        _answer({"pids": pids})
        _answer(_collect(pids, request["left"], request["seconds"]))


def _answer(value: object) -> None:
    print(json.dumps(value), flush=True)


def _start(request: dict, rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    for descriptor, stream in ((1, "out"), (2, "err")):
        path = Path(request["folder"]) / f"{rank}.{stream}"
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.pop("OMP_NUM_THREADS", None)
    os.environ.update(request["environments"][rank])
    status = 1
    try:
        status = getattr(scenarios, request["scenario"])(*request["arguments"]) or 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _collect(pids: list[int], left: list[int], seconds: float) -> dict:
    """Wait for all but the processes in `left`, wake those up and wait for them too."""
    start, statuses, ended = time.monotonic(), {}, {}
    first = [pid for rank, pid in enumerate(pids) if rank not in left]
    for group in (first, pids):
        for pid in group:
            os.kill(pid, signal.SIGCONT) if pid not in statuses and group is pids else None
        while not statuses.keys() >= set(group) and time.monotonic() < start + seconds:
            for pid in set(pids) - statuses.keys():
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    statuses[pid] = os.waitstatus_to_exitcode(status)
                    ended[pid] = time.monotonic() - start
            time.sleep(0.02)
    for pid in set(pids) - statuses.keys():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return {
        "statuses": [statuses.get(pid) for pid in pids],
        "seconds": [ended.get(pid) for pid in pids],
    }


if __name__ == "__main__":
    main()
