"""Runs a function in new processes, joined by gloo if there are several."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 600

KEEPING = {
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TOP_PAD_": str(2**26),
}
"""Makes glibc keep freed memory. Otherwise a step of ResNet-20 takes up to 15,000 page faults and a
fifth of its time for them, or none, by where the last allocation happened to end."""

RETURNING = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""Makes glibc return freed memory at once, so that a peak counts tensors, not free memory."""


def run(
    processes: int,
    function: Callable[..., Any],
    *arguments: Any,
    environment: Mapping[str, str] = KEEPING,
) -> Any:
    """Runs `function(*arguments)` in each of P processes over loopback; the first one's result.

    Args:
        processes: P; one has no process group.
        function: found by its name in a module, as pickle does.
        environment: variables that the processes start with, beside ours.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with tempfile.TemporaryDirectory(prefix="localsgd-bench-") as folder:
        store = str(Path(folder) / "store")
        started = [
            context.Process(
                target=_serve,
                args=(rank, processes, store, there if rank == 0 else None, function, arguments),
                daemon=True,
            )
            for rank in range(processes)
        ]
        with variables(environment):
            for process in started:
                process.start()
        there.close()
        try:
            answer = here.recv()
        except EOFError:
            raise RuntimeError(f"{function.__name__} failed in {processes} processes") from None
        finally:
            for process in started:
                process.join(10)
                process.kill()
    return answer


@contextmanager
def variables(environment: Mapping[str, str]) -> Generator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def join(rank: int, processes: int, store: str) -> None:
    """Joins the other processes over loopback, by a file; a single one stays alone."""
    if processes > 1:
        if Path("/sys/class/net/lo").exists():
            os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=processes,
            timeout=timedelta(seconds=SECONDS),
        )


def _serve(
    rank: int,
    processes: int,
    store: str,
    answer: Any,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    torch.set_num_threads(1)
    join(rank, processes, store)
    found = function(*arguments)
    if answer is not None:
        answer.send(found)
    if processes > 1:
        dist.destroy_process_group()
