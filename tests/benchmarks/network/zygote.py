"""Members of a crew as children of one process that has imported torch: cheaper than torchrun.

python -m tests.benchmarks.network.zygote ADDRESS PORT SOCKET NAMESPACE...
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from benchmarks.network import member
from benchmarks.network.laboratory import WIRE

NEW_NETWORK = 0x40000000
"""CLONE_NEWNET."""
DIES_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""

_libc = ctypes.CDLL(None, use_errno=True)


def enter(namespace: str) -> None:
    with open(f"/run/netns/{namespace}", "rb") as file:
        if _libc.setns(file.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), f"no way into {namespace}")


def main() -> None:
    address, port, socket, *namespaces = sys.argv[1:]
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": WIRE}
    os.environ["WORLD_SIZE"] = str(len(namespaces))
    for rank, namespace in enumerate(namespaces):
        if os.fork() == 0:
            _libc.prctl(DIES_WITH_PARENT, signal.SIGKILL)
            enter(namespace)
            os.environ["RANK"] = str(rank)
            sys.argv = ["member", socket]
            member.main()
            os._exit(0)
    for _ in namespaces:
        os.wait()


if __name__ == "__main__":
    main()
