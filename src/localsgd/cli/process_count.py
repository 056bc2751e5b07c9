"""The fastest number of processes, memory format and precision, measured before a run starts.

    seconds(P) = start + T (K/P t(C/P) + sync)

P processes, C cores, T steps of K workers, and t(n) the measured seconds of one worker's step with
n threads. A single process needs neither start nor sync.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import torch

from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology, check_hosting
from localsgd.basics.console import Console
from localsgd.basics.units import plural, whole_within
from localsgd.errors import UserError
from localsgd.train.config.blame import naming_parts
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import Assembly, assemble, pick_device
from localsgd.train.launch.join import cores

START_SECONDS = 8.0
"""Time to start processes: they import torch and connect."""
CALL_SECONDS, BYTES_A_SECOND = 0.001, 1e9
"""Assumed latency and bandwidth of a sync between processes of one machine."""
SECONDS = 0.5
"""Approximate length of one measurement."""
MOST_THREADS = 1 << 16
"""What OMP_NUM_THREADS says beyond is ignored, as a list for nested loops is."""
WORTH = 1.05
"""Speed-up that another format or precision must reach to be chosen."""


def fits(topology: Topology, processes: int) -> bool:
    """Whether this many processes each host whole blocks, or each block has whole processes."""
    try:
        check_hosting(topology, processes)
    except UserError:
        return False
    return True


@dataclass(frozen=True)
class Choice:
    """The chosen number of processes, and the measurements behind it.

    Args:
        processes: P.
        threads: of each process.
        seconds: time of a worker's step, by number of threads; empty if nothing was measured.
    """

    processes: int
    threads: int
    seconds: dict[int, float]

    def __str__(self) -> str:
        steps = ", ".join(
            f"{1000 * seconds:.3g} ms with {plural(threads, 'thread')}"
            for threads, seconds in sorted(self.seconds.items())
        )
        processes = plural(self.processes, "process", "processes")
        chosen = f"Started by auto: {processes} of {plural(self.threads, 'thread')}"
        return chosen + (f" (a worker's step takes {steps})" if steps else "")


def choose_processes(runs: Sequence[Run], task: Task) -> Choice:
    """The number of processes for completed `runs`; the first of them is measured."""
    wanted = runs[0]
    topologies = [Topology.parse(run.topology or 1) for run in runs]
    workers = topologies[0].workers
    gpus = torch.cuda.device_count() if pick_device(wanted.device).type == "cuda" else 0
    count = gpus or cores()
    possible = [
        processes
        for processes in range(1, min(workers, count) + 1)
        if all(fits(topology, processes) for topology in topologies)
    ]
    if gpus or len(possible) == 1:
        return Choice(possible[-1], threads_of(possible[-1]), {})
    seconds = {
        threads: step_seconds(wanted, task, threads)
        for threads in sorted({threads_of(processes) for processes in possible})
    }
    steps = Plan(wanted, task.train_size).steps
    model = assembled_alone(wanted, task).workers.params.nbytes
    sync = CALL_SECONDS + 2 * model / BYTES_A_SECOND

    def whole(processes: int) -> float:
        compute = workers / processes * seconds[threads_of(processes)]
        communication = 0.0 if processes == 1 else sync
        return (START_SECONDS if processes > 1 else 0.0) + steps * (compute + communication)

    best = min(possible, key=whole)
    return Choice(best, threads_of(best), seconds)


def threads_of(processes: int) -> int:
    """Threads of each process if this many run on the machine."""
    given = whole_within(os.environ.get("OMP_NUM_THREADS", ""), 1, MOST_THREADS)
    return given or max(1, cores() // processes)


def assembled_alone(wanted: Run, task: Task) -> Assembly:
    """One worker of `wanted`, without settings that take long to prepare."""
    alone = msgspec.structs.replace(
        wanted,
        workers=1,
        topology="1",
        local_steps=(1,),
        method="mini-batch",
        slowdown=(),
        partition="reshuffled",
        exhausted="repeat",
        compile=False,
        batched=False,
    )
    return assemble(alone, task, placement_of(Topology.parse(1)), pick_device(wanted.device))


def step_seconds(wanted: Run, task: Task, threads: int) -> float:
    """Median seconds of one worker's local step with this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with naming_parts(wanted):
            workers = assembled_alone(wanted, task).workers

            def step() -> None:
                workers.backward()
                workers.apply(0.0)
                float(workers.loss_sums[0])  # waits for a GPU

            return _median_seconds(step)
    finally:
        torch.set_num_threads(before)


def _median_seconds(step: Callable[[], None]) -> float:
    for _ in range(2):
        step()
    times: list[float] = []
    while sum(times) < SECONDS or len(times) < 3:
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def quickest(wanted: Run, task: Task, console: Console) -> Run:
    """The completed run `wanted`, with channels_last and bfloat16 if they are faster.

    A format or precision that is not the default stays as it is.
    """
    threads = threads_of(1)
    fixed = wanted.channels_last or len(task.input_shape) != 3
    formats = (wanted.channels_last,) if fixed else (False, True)
    usual = wanted.precision == "float32"
    variants = [
        msgspec.structs.replace(wanted, channels_last=last, precision=precision)
        for precision in (("float32", "bfloat16") if usual else (wanted.precision,))
        for last in formats
    ]
    times = {_name(run): step_seconds(run, task, threads) for run in variants}
    plain = times[_name(variants[0])]
    best = min(variants, key=lambda run: times[_name(run)])
    if times[_name(best)] * WORTH > plain:
        best = variants[0]
    measured = ", ".join(f"{name} {1000 * seconds:.3g} ms" for name, seconds in times.items())
    console.print(f"Format: {_name(best)} (a worker's step: {measured})")
    return best


def _name(run: Run) -> str:
    return str(run.precision) + (", channels_last" if run.channels_last else "")
