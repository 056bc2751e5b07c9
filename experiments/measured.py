"""Times measured on this machine as jobs: steps of a network, and all-reduces between processes."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from experiments.registry import network
from experiments.study import Record, Workplace
from experiments.training import figure
from localsgd.errors import UserError
from localsgd.train.data import tasks

LONGEST = 300.0
"""Seconds that processes may take."""


@dataclass(frozen=True)
class StepTime:
    """Forward and backward passes of one batch, on one core or on the GPU.

    Args:
        model, task: the network and what it reads; samples are noise.
        batch: B.
        repeats: that are timed, after one that is not.
    """

    model: str
    task: str
    batch: int
    repeats: int
    alone = True

    @property
    def key(self) -> Mapping[str, Any]:
        return {"kind": "step-time", **vars(self), "device": device().type}

    @property
    def title(self) -> str:
        return f"a step of {self.model}, batch {self.batch}"

    def carry_out(self, place: Workplace) -> Record:
        card = tasks.card(self.task)
        model = network(self.model, self.task).to(device())
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(self.batch, *card.input_shape, generator=generator).to(device())
        y = torch.randint(card.classes, (self.batch,), generator=generator).to(device())

        def step() -> None:
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            if x.is_cuda:
                torch.cuda.synchronize()

        step()
        return _record([_seconds(step) for _ in range(self.repeats)])


def _record(times: Sequence[float]) -> Record:
    """Each time, and all together."""
    return {"seconds": round(sum(times), 2), "times": [figure(one) for one in times]}


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _seconds(action: Any) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


@dataclass(frozen=True)
class AllReduceTime:
    """An all-reduce between processes of this machine, over loopback by gloo.

    Args:
        processes: how many.
        bytes: that each of them holds, in float32.
        repeats: that are timed, after one that is not.
    """

    processes: int
    bytes: int
    repeats: int
    alone = True

    @property
    def key(self) -> Mapping[str, Any]:
        return {"kind": "all-reduce-time", **vars(self), "cores": os.cpu_count()}

    @property
    def title(self) -> str:
        return f"an all-reduce of {self.bytes / 1e6:g} MB, {self.processes} processes"

    def carry_out(self, place: Workplace) -> Record:
        context = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as folder:
            meeting = Path(folder) / "meeting"
            results = context.SimpleQueue()
            crew = [
                context.Process(target=_member, args=(self, rank, meeting, results), daemon=False)
                for rank in range(self.processes)
            ]
            for one in crew:
                one.start()
            try:
                _wait_for(crew)
                return _record(results.get())
            finally:
                for one in crew:
                    one.kill()
                    one.join()


def _wait_for(crew: list[Any]) -> None:
    end = time.monotonic() + LONGEST
    for one in crew:
        one.join(max(0.0, end - time.monotonic()))
        if one.exitcode != 0:
            raise UserError(
                f"a process of the all-reduce has not ended as it should ({one.exitcode}); "
                "try fewer processes, or fewer bytes"
            )


def _member(job: AllReduceTime, rank: int, meeting: Path, results: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=job.processes
    )
    x = torch.ones(job.bytes // 4)

    def reduce() -> None:
        dist.all_reduce(x)

    reduce()
    times = []
    for _ in range(job.repeats):
        dist.barrier()
        times.append(_seconds(reduce))
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    if rank == 0:
        results.put(slowest.tolist())
    dist.destroy_process_group()
