"""What a process of the crew does: trains its worker of an arm, and judges the averaged model.

Shapes: K workers, one a process · B samples of a local batch.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.network.accuracy.arms import ARMS
from benchmarks.network.accuracy.setting import Setting
from benchmarks.workloads import inner
from localsgd import LocalSGD
from localsgd.averaging.placement import placement_of
from localsgd.averaging.topology import Topology
from localsgd.basics.seeds import generator_for
from localsgd.optimizer.averaged_model import averaged
from localsgd.train.data import models
from localsgd.train.data.sampling.order import Order
from localsgd.train.data.task import Task
from localsgd.train.data.tasks import load
from localsgd.wire import Collective


@cache
def _task(images: int) -> Task:
    return load("cifar10").subset(images)


@cache
def _world(workers: int) -> Collective:
    return placement_of(Topology((workers,))).world


class Trainee:
    """One worker. Weights, samples and crops follow from the seed, and are the same in all arms."""

    def __init__(self, arm: str, setting: Setting, seed: int) -> None:
        self._rank, self._workers = dist.get_rank(), dist.get_world_size()
        self._task = _task(setting.images)
        self._module = models.build(setting.network, self._task, seed)
        self._model, self._optimizer = ARMS[arm].wrap(self._module, inner(self._module), setting)
        self._order = Order(setting.images, self._workers, setting.batch, seed)
        self._crops = generator_for(seed, "crops", self._rank)
        self._rate = setting.rate()
        self._steps = 0

    def step(self) -> None:
        """A step of a plain training loop."""
        indices = self._order.indices(self._rank, self._steps)
        x, y = self._task.train_batch(indices, self._crops)
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate(self._steps)
        self._optimizer.zero_grad()
        self._task.loss(self._model(x), y).backward()
        self._optimizer.step()
        self._steps += 1

    def finish(self) -> None:
        """Makes the last sync, if one is still due."""
        if isinstance(self._optimizer, LocalSGD):
            self._optimizer.finish()

    def judge(self, first: int, end: int) -> int:
        """How many of this process's part of test images `first` to `end` the averaged model has
        right.
        """
        mine = torch.arange(first + self._rank, max(first + self._rank, end), self._workers)
        with self._averaged():
            self._module.eval()
            parts = mine.split(self._task.judged_together) if len(mine) else ()
            right = sum(int(self._task.judge(self._module, some)[1]) for some in parts)
            self._module.train()
        return right

    def _averaged(self) -> AbstractContextManager[Any]:
        """The mean of the workers' weights and statistics; DDP's weights are that already."""
        if isinstance(self._optimizer, LocalSGD):
            return self._optimizer.averaged_model()
        return averaged(self._module, (), _world(self._workers), rows_differ=False)


_trainees: dict[str, Trainee] = {}


def begin(arm: str, setting: Setting, seed: int) -> None:
    _trainees[arm] = Trainee(arm, setting, seed)


def advance(arm: str, steps: int, last: bool = False) -> tuple[float, float]:
    """Seconds for so many steps by the clock, and of this process's processors."""
    trainee = _trainees[arm]
    dist.barrier()
    start, busy = time.perf_counter(), time.process_time()
    for _ in range(steps):
        trainee.step()
    if last:
        trainee.finish()
    return time.perf_counter() - start, time.process_time() - busy


def judge(arm: str, first: int, end: int) -> int:
    return _trainees[arm].judge(first, end)


def leave() -> None:
    """Ends all trainees."""
    _trainees.clear()
