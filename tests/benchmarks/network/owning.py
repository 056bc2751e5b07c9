"""An owner of a laboratory, to be killed: prints its prefix and its guard's pid, and sleeps."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from benchmarks.network import laboratory as laboratories


def main() -> None:
    # Tests that run in the background of a shell have interrupts ignored, and so would this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    guards = []
    start = laboratories.start_guard

    def kept(prefix: str) -> subprocess.Popen[bytes]:
        guards.append(start(prefix))
        return guards[0]

    laboratories.start_guard = kept
    with laboratories.laboratory(2) as made:
        subprocess.Popen(made.within(1, ["sleep", "1000"]))
        print(made.namespace(0).removesuffix("n0"), guards[0].pid, flush=True)
        time.sleep(float(sys.argv[1]))


if __name__ == "__main__":
    main()
