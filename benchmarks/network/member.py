"""One process of a crew, started by torchrun: joins the others, then does what it is told.

torchrun ... -m benchmarks.network.member SOCKET
"""

from __future__ import annotations

import pickle
import sys
import traceback
from datetime import timedelta
from multiprocessing.connection import Client, Connection
from typing import Any

import torch
import torch.distributed as dist

LIMIT = timedelta(minutes=5)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=LIMIT)
    with Client(sys.argv[1], "AF_UNIX") as connection:
        connection.send(dist.get_rank())
        _serve(connection)
    # Without a farewell: others may be stuck in a collective, and all end at once.


def _serve(connection: Connection[Any, Any]) -> None:
    while True:
        try:
            connection.send_bytes(_result(connection.recv_bytes()))
        except (EOFError, BrokenPipeError, ConnectionResetError):  # The crew is no longer needed.
            return


def _result(job: bytes) -> bytes:
    """Pickled (number of the call; traceback, `""` if there is none; what the function gave)."""
    call, work = pickle.loads(job)
    try:
        function, arguments = pickle.loads(work)
        return pickle.dumps((call, "", function(*arguments)))
    except BaseException:
        return pickle.dumps((call, traceback.format_exc(), None))


if __name__ == "__main__":
    main()
