"""Starts a program on all nodes of a laboratory as on a cluster: torchrun on each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO

from benchmarks.network.laboratory import WIRE, Laboratory

PORT = 29500
VARIABLES = {
    "GLOO_SOCKET_IFNAME": WIRE,
    "OMP_NUM_THREADS": "1",  # the nodes share this machine's cores
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
GRACE_SECONDS = 5.0


def command(laboratory: Laboratory, node: int, program: Sequence[str], processes: int) -> list[str]:
    """The command of one node: its agent, and P copies of `program` (Python's arguments)."""
    rendezvous = ["--master-addr", laboratory.address(0), "--master-port", str(PORT)]
    return laboratory.within(
        node,
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--nnodes", str(laboratory.nodes), "--node-rank", str(node)),
            *("--nproc-per-node", str(processes), "--max-restarts", "0"),
            *(*rendezvous, "--local-addr", laboratory.address(node)),
            *program,
        ],
    )


@contextmanager
def started(
    laboratory: Laboratory,
    program: Sequence[str],
    processes: int = 1,
    environment: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> Generator[list[subprocess.Popen[bytes]]]:
    """The agents of all nodes, in their order; ended at the end if they are still there.

    Args:
        laboratory: where.
        program: what every process runs.
        processes: P, on each node.
        environment: variables beside `VARIABLES` and this process's own.
        output: where all that they print goes; this process's if not given.
    """
    variables = {**os.environ, **VARIABLES, **(environment or {})}
    agents = []
    try:
        for node in range(laboratory.nodes):
            line = command(laboratory, node, program, processes)
            agents.append(subprocess.Popen(line, env=variables, stdout=output, stderr=output))
        yield agents
    finally:
        _end(agents)


def _end(agents: Sequence[subprocess.Popen[bytes]]) -> None:
    for agent in agents:
        agent.terminate()
    for agent in agents:
        try:
            agent.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()  # Its children go with the namespace.
            agent.wait()
