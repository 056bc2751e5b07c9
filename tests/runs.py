"""Whole runs on 80 of the digits, in well under a second: 12 steps of 4 workers."""

from __future__ import annotations

import functools
import os
import resource
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data import tasks
from localsgd.train.data.task import Task
from localsgd.train.data.tasks.digits import CARD
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.execution import Execution, prepare
from localsgd.train.engine.observer import Observer

SAMPLES = 80
STEPS = 12


def tiny(**settings: Any) -> Run:
    """4 workers of batch 5: 4 steps an epoch. H = 1 for 4 steps, then rounds of 3."""
    usual = {
        "model": "small-cnn-4",
        "train_samples": SAMPLES,
        "workers": None if "topology" in settings else 4,
        "batch": 5,
        "epochs": 3.0,
        "local_steps": (3,),
        "switch": "step:4",
        "reduction": "ordered",
    }
    return complete_run(Run(**{**usual, **settings}), CARD)


@functools.cache
def digits(samples: int = SAMPLES) -> Task:
    return tasks.load("digits").subset(samples)


class Silent(Observer):
    """An observer that calls `at_step` after every step."""

    def __init__(self, at_step: Callable[[int], None] = lambda step: None) -> None:
        self.rows: list[dict[str, Any]] = []
        self._at_step = at_step

    def stepped(self, assembly: Assembly) -> None:
        self._at_step(assembly.workers.step)

    def evaluated(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


class Killed(BaseException):
    """As kill -9: nothing is done any more."""


def killed_at(wanted: int) -> Callable[[int], None]:
    def stop(step: int) -> None:
        if step == wanted:
            raise Killed

    return stop


def signalled_at(wanted: int, number: int) -> Callable[[int], None]:
    def stop(step: int) -> None:
        if step == wanted:
            os.kill(os.getpid(), number)

    return stop


def prepared(
    run: Run,
    path: Path,
    *,
    at_step: Callable[[int], None] = lambda step: None,
    resuming: bool = False,
    **options: Any,
) -> Execution:
    """The run in the folder `path`, ready to train."""
    task = digits(run.train_samples or CARD.train_size)
    return prepare(run, task, path, Silent(at_step), resuming=resuming, **options)


def worker_states(assembly: Assembly) -> dict[int, dict[str, Any]]:
    """All that the workers hosted here are, by worker."""
    workers = assembly.workers
    return {
        worker: {
            "params": workers.params[row].clone(),
            "buffers": [rows[row].clone() for _, rows in workers.buffers],
            "inner": workers.state(row)["inner"]["state"],
        }
        for row, worker in enumerate(workers.ids)
    }


def same(one: Any, other: Any) -> bool:
    """Whether two nests of dictionaries, lists and tensors are equal bit for bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


@contextmanager
def files_of_at_most(size: int) -> Generator[None]:
    """Writing fails beyond so many bytes of a file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
