"""K = 16 workers, B = 128, ResNet-20: against the best that one worker can do on the same machine.

The one worker is a bare PyTorch loop with all cores as threads, in several formats, compiled or
not. The trainer hosts 16 workers in a process for each core, one thread each, or in one process,
and synchronises after every step. All stand ready in processes of their own and take turns: a turn
is 2,048 samples.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import crew
from benchmarks.report import Finding, publish, timed
from benchmarks.timing import Spread, Times, take_turns
from benchmarks.workloads import advance, assembled, inner, random_cifar
from localsgd.train.data import models

WORKERS, BATCH, MODEL = 16, 128, "resnet20"
SHARE = 0.95
"""Smallest fraction of the best single worker's samples per second."""
TURNS = 7


@dataclass(frozen=True)
class Way:
    """The way in which a contestant computes.

    Args:
        workers: K; a bare loop for 1.
        processes, threads: of each.
    """

    workers: int
    processes: int
    threads: int
    channels_last: bool = False
    bfloat16: bool = False
    compile: bool = False

    def __str__(self) -> str:
        name = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        name += f", {self.processes} x {self.threads} threads"
        for word in ("channels_last", "bfloat16", "compile"):
            name += f", {word}" if getattr(self, word) else ""
        return name


def ways(cores: int) -> list[Way]:
    """The contestants: the single worker's, then the trainer's."""
    formats: list[dict[str, Any]] = [{}, {"channels_last": True}]
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        formats.append({"channels_last": True, "bfloat16": True})
    single = [Way(1, 1, threads, **f) for threads in sorted({1, cores}) for f in formats]
    compiled = [Way(1, 1, cores, compile=True)]
    processes = next(p for p in range(min(cores, WORKERS), 0, -1) if WORKERS % p == 0)
    many = [Way(WORKERS, processes, max(1, cores // processes), **f) for f in formats]
    return [*single, *compiled, *many, Way(WORKERS, 1, cores)]


def bare(way: Way, batch: int, steps: int) -> Callable[[], None]:
    """Takes steps of a plain training loop."""
    task = random_cifar()
    model = models.build(MODEL, task, seed=0)
    layout = torch.channels_last if way.channels_last else torch.contiguous_format
    model.to(memory_format=layout)  # pyrefly: ignore
    optimizer = inner(model)
    forward = torch.compile(model) if way.compile else model
    draw = torch.Generator().manual_seed(1)

    def step() -> None:
        indices = torch.randint(task.train_size, (batch,), generator=draw)
        x, y = task.train_batch(indices, draw)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, way.bfloat16):
            output = forward(x.contiguous(memory_format=layout))
        task.loss(output.float(), y).backward()
        optimizer.step()

    def act() -> None:
        for _ in range(steps):
            step()

    return act


def trainer(way: Way, batch: int) -> Callable[[], None]:
    """A step of all K workers, and their sync."""
    assembly = assembled(
        random_cifar(),
        MODEL,
        batch,
        topology=str(way.workers),
        method="local",
        channels_last=way.channels_last,
        precision="bfloat16" if way.bfloat16 else "float32",
    )
    return lambda: advance(assembly, 1)


def _serve(way: Way, batch: int, rank: int, store: str, told: Connection) -> None:
    torch.set_num_threads(way.threads)
    crew.join(rank, way.processes, store)
    act = bare(way, batch, WORKERS) if way.workers == 1 else trainer(way, batch)
    act()
    told.send("ready")
    while told.recv() == "go":
        act()
        told.send("done")
    if way.processes > 1:
        dist.destroy_process_group()


class Stand:
    """A contestant in separate processes, which are idle except in its turns."""

    def __init__(self, way: Way, batch: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory(prefix="localsgd-best-")
        store = str(Path(self._folder.name) / "store")
        self._lines: list[Connection] = []
        self._processes = []
        threads = {"OMP_NUM_THREADS": str(way.threads)}
        with crew.variables({**crew.KEEPING, **threads}):
            for rank in range(way.processes):
                here, there = context.Pipe()
                process = context.Process(
                    target=_serve, args=(way, batch, rank, store, there), daemon=True
                )
                process.start()
                there.close()
                self._lines.append(here)
                self._processes.append(process)

    def ready(self) -> bool:
        """Waits for its first turn, which doesn't count; `False` if it can't run here."""
        try:
            return all(line.recv() == "ready" for line in self._lines)
        except EOFError:
            return False

    def act(self) -> None:
        for line in self._lines:
            line.send("go")
        for line in self._lines:
            line.recv()

    def __enter__(self) -> Stand:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for line in self._lines:
            with suppress(OSError):  # it may not have come so far
                line.send("stop")
            line.close()
        for process in self._processes:
            process.join(1)
            process.kill()
            process.join()
        self._folder.cleanup()


def measure(turns: int = TURNS, batch: int = BATCH) -> list[Finding]:
    """All contestants' times; the best of the trainer is held to the best single worker's."""
    with ExitStack() as stack:
        stands: dict[Way, Stand] = {}
        for way in ways(len(os.sched_getaffinity(0))):
            stand = stack.enter_context(Stand(way, batch))
            if stand.ready():  # one after the other, as they warm up
                stands[way] = stand
            else:
                print(f"{way}: cannot be done here")
        times = take_turns({str(way): stand.act for way, stand in stands.items()}, turns)
        single = _best([way for way in stands if way.workers == 1], times)
        many = _best([way for way in stands if way.workers > 1], times)
    found = timed(f"{MODEL}, B = {batch}", times, single, {many: 1 / SHARE})
    return [_with_pace(finding, times[finding.contestant], batch) for finding in found]


def _best(ways: list[Way], times: Mapping[str, Times]) -> str:
    return min(map(str, ways), key=lambda name: statistics.median(times[name].wall))


def _with_pace(finding: Finding, times: Times, batch: int) -> Finding:
    pace = Spread.of([WORKERS * batch / seconds for seconds in times.wall])
    cells = {**finding.cells, "samples/s": f"{pace.median:,.0f}"}
    cells.pop("of CPU time", None)  # of another process
    figures = {**finding.figures, "samples_per_second": round(pace.median, 1)}
    figures.pop("cpu_ratio", None)
    return replace(finding, cells=cells, figures=figures)


def main(share: float = 1.0) -> bool:
    start = time.monotonic()
    title = f"{WORKERS} workers against the best single worker"
    holds = publish("best", title, measure(max(2, round(share * TURNS))))
    print(f"{time.monotonic() - start:.0f} s")
    return holds


if __name__ == "__main__":
    main()
