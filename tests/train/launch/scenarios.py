"""What the processes of the tests do; each function is the main program of one process."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from localsgd.errors import PeerLost, UserError
from localsgd.train.launch import Heartbeat, World, check_same, joined, launch, print_exit_message

LIMIT = 3.0


def launcher(mode: str, folder: str) -> int:
    child = Path(__file__).with_name("child.py")
    return launch([mode, folder], 2, program=[str(child)])


def launcher_after_nohup(mode: str, folder: str) -> int:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return launcher(mode, folder)


def join() -> None:
    with joined() as world:
        total = torch.ones(2)
        dist.all_reduce(total)
        print(world, total.tolist(), torch.get_num_threads())
    print(dist.is_initialized())


def listen() -> None:
    """Addresses on which this process listens, and the interface that gloo and NCCL are given."""
    with joined():
        dist.barrier()
        print(*listening(os.getpid()))
        print(os.environ.get("GLOO_SOCKET_IFNAME"), os.environ.get("NCCL_SOCKET_IFNAME"))
        dist.barrier()


def listening(pid: int) -> set[str]:
    """Addresses of the TCP sockets on which a process listens."""
    inodes = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = Path(table).read_text().splitlines()[1:] if Path(table).is_file() else []
        for _, local, _, state, *_, inode in (row.split()[:10] for row in rows):
            if state == "0A" and f"socket:[{inode}]" in inodes:
                raw = bytes.fromhex(local.split(":")[0])
                words = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
                found.add(str(ipaddress.ip_address(words)))
    return found


def join_in_vain() -> None:
    try:
        with joined(timeout_seconds=1):
            pass
    except PeerLost as error:
        print(error)


def same(*values: str) -> None:
    with joined() as world:
        check_same("topology", "8x2")
        try:
            check_same("configuration", values[world.rank])
        except UserError as error:
            print(error)


def early_end() -> None:
    """Rank 1 ends early and in good order, the others well after the limit."""

    def body(world: World, heartbeat: Heartbeat) -> None:
        _work(heartbeat, 0.5 if world.rank == 1 else 1.3 * LIMIT)

    _run(body)


def works_on(limit: float = LIMIT) -> None:
    """All work until after the limit, and begin once all are there."""

    def body(world: World, heartbeat: Heartbeat) -> None:
        print("works", flush=True)
        _work(heartbeat, 1.2 * LIMIT)

    _run(body, limit)


def over_links(seconds: float, limit: float) -> None:
    """Short rounds, each process on a node of its own, which the variable NODE names."""
    with open(f"/run/netns/{os.environ['NODE']}", "rb") as node:
        assert ctypes.CDLL(None).setns(node.fileno(), 0) == 0

    def body(world: World, heartbeat: Heartbeat) -> None:
        going = torch.ones(1)
        end = time.monotonic() + seconds
        while going:
            _work(heartbeat, 0.1)
            going[0] = time.monotonic() < end
            with heartbeat.waiting():
                dist.broadcast(going, src=0)
            print("round", flush=True)

    _run(body, limit)


def early_end_of_store() -> None:
    """Rank 0, which holds the store, ends first."""

    def body(world: World, heartbeat: Heartbeat) -> None:
        _work(heartbeat, 0.2 if world.rank == 0 else 1.0)

    _run(body)


def lost_in_local_phase(rank: int, how: str) -> None:
    """One rank is killed or stopped while all take local steps."""

    def body(world: World, heartbeat: Heartbeat) -> None:
        _work(heartbeat, 0.5)
        if world.rank == rank:
            os.kill(os.getpid(), signal.Signals[how])
        _work(heartbeat, 60)

    _run(body)


def lost_in_collective(how: str, limit: float = LIMIT) -> None:
    """Rank 1 goes while the others wait for it in a collective."""

    def body(world: World, heartbeat: Heartbeat) -> None:
        _work(heartbeat, 0.5)
        if world.rank == 1 and how == "loop":
            while True:
                pass
        if world.rank == 1 and how == "raise":
            raise ValueError("boom\nand more")
        if world.rank == 1:
            os.kill(os.getpid(), signal.Signals[how])
        with heartbeat.waiting():
            dist.all_reduce(torch.ones(3))

    _run(body, limit)


def raises_in_local_phase() -> None:
    def body(world: World, heartbeat: Heartbeat) -> None:
        _work(heartbeat, 0.5)
        if world.rank == 1:
            raise ValueError("boom\nand more")
        _work(heartbeat, 60)

    _run(body)


def _run(body: Callable[[World, Heartbeat], None], limit: float = LIMIT) -> None:
    """As the command line does it."""
    try:
        with joined() as world, Heartbeat(world, limit) as heartbeat:
            body(world, heartbeat)
    except PeerLost as error:
        print_exit_message(str(error))
        sys.exit(3)


def _work(heartbeat: Heartbeat, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)
        heartbeat.beat()
