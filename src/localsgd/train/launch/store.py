"""The key-value store through which the processes of a run find each other.

On one machine it listens on loopback only, so that no other machine can reach it. Its values are
read as text, never unpickled, and never decide which process to end.
"""

from __future__ import annotations

import socket
from datetime import timedelta

import torch.distributed as dist

from localsgd.train.launch.world import Store


def serve_on(address: str) -> tuple[dist.TCPStore, int]:
    """A store that listens on one address of this machine alone, and its port."""
    port, listener = _listen(address, 0)
    store = dist.TCPStore(
        address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener
    )
    return store, port


def open_store(
    place: Store, timeout: timedelta, *, size: int | None = None, serve: bool = False
) -> dist.TCPStore:
    """The store at `place`, as a client or as the process that holds it.

    Args:
        size: number of processes that connect; the one that serves waits for all of them. None for
            an additional connection.
        serve: hold the store, on loopback only if `place` is a loopback address. A name that has
            one on this machine alone, as Debian's hosts do, is not: others know another of it.

    Raises:
        torch.distributed.DistError: within `timeout` there is no server, or not all have connected.
        OSError: the port is taken.
    """
    listener = None
    if serve and place.on_loopback:
        _, listener = _listen(place.host, place.port)
    return dist.TCPStore(
        place.host,
        place.port,
        size,
        is_master=serve,
        timeout=timeout,
        wait_for_workers=size is not None,
        master_listen_fd=listener,
    )


def loopback_interface() -> str | None:
    """The name of the loopback network interface, if there is one."""
    return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)


def _listen(host: str, port: int) -> tuple[int, int]:
    """The port and the file descriptor of a listening socket, which the store closes."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.create_server(address[:2], family=family, backlog=1024)
    port = listener.getsockname()[1]
    return port, listener.detach()
