"""Real processes for tests, forked from one that has everything imported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Outcome:
    """How the processes of a test ended: exit status (None: had to be killed), seconds, output."""

    pids: list[int]
    statuses: list[int | None]
    seconds: list[float | None]
    out: list[str]
    err: list[str]


class Zygote:
    def __init__(self, folder: Callable[[], Path]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def run(
        self,
        scenario: str,
        environments: Sequence[dict[str, str]],
        *arguments: object,
        left: Sequence[int] = (),
        seconds: float = 80,
        meanwhile: Callable[[list[int], Path], None] = lambda pids, folder: None,
    ) -> Outcome:
        """Run a scenario in one process for each environment.

        Processes in `left` are waited for after all others, with SIGCONT.
        """
        folder = self._folder()
        request = {
            "scenario": scenario,
            "environments": environments,
            "arguments": arguments,
            "left": left,
            "seconds": seconds,
            "folder": str(folder),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        pids = self._answer()["pids"]
        meanwhile(pids, folder)
        result = self._answer()
        out, err = (
            [(folder / f"{rank}.{stream}").read_text() for rank in range(len(pids))]
            for stream in ("out", "err")
        )
        return Outcome(pids, result["statuses"], result["seconds"], out, err)

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        with self._process:
            self._process.kill()


@pytest.fixture(scope="package")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    zygote = Zygote(lambda: tmp_path_factory.mktemp("run"))
    yield zygote
    zygote.close()


@pytest.fixture
def free_port() -> int:
    """A port of those that a Slurm job's number stands for."""
    for port in range(15_000 + os.getpid() % 10_000, 31_000):
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", port)):
                return port
    raise AssertionError("no free port")


@pytest.fixture
def torchrun(free_port: int) -> Callable[..., list[dict[str, str]]]:
    """Environments as torchrun sets them; the store is rank 0's."""

    def environments(size: int) -> list[dict[str, str]]:
        return [
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(free_port),
                "OMP_NUM_THREADS": "1",
            }
            for rank in range(size)
        ]

    return environments
