"""Phase 1 once for each seed, and arms that go on from the workers it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from localsgd.averaging.placement import placement_of
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.evaluation import averaged_model
from localsgd.train.engine.watching import Records, Watcher


@dataclass(frozen=True)
class Fork:
    """All workers after `step` steps, between two rounds."""

    step: int
    workers: tuple[dict[str, Any], ...]


def assembled(run: Run, task: Task) -> Assembly:
    """All workers of a completed run, in this process."""
    placement = placement_of(Plan(run, task.train_size).topology)
    return assemble(run, task, placement, torch.device("cpu"))


def advance(
    assembly: Assembly, step: int, after_step: Callable[[], None] = lambda: None
) -> Assembly:
    """Trains up to a step, which ends with a sync."""
    assembly.advance(after_step, steps=step)
    return assembly


def phase_one(run: Run, task: Task, watchers: Sequence[Watcher] = ()) -> tuple[Fork, Records]:
    """The workers of mini-batch SGD when the learning rate is about to fall for the first time, and
    what was watched until then.
    """
    assembly = assembled(run, task)
    records: Records = []
    after_step = watched_by(watchers, assembly, records)
    advance(assembly, assembly.plan.learning_rate.decays[0], after_step)
    workers = assembly.workers
    states = [workers.state(row) for row in range(len(workers.ids))]
    return Fork(workers.step, tuple(copy.deepcopy(states))), records


def resumed(run: Run, task: Task, fork: Fork) -> Assembly:
    """The workers of another run, put where those of `fork` were."""
    assembly = assembled(run, task)
    for row, state in enumerate(fork.workers):
        assembly.workers.load(row, copy.deepcopy(state))
    assembly.workers.step = fork.step
    return assembly


def trained(assembly: Assembly, watchers: Sequence[Watcher] = ()) -> tuple[nn.Module, Records]:
    """Trains to the end; the averaged model, and what was watched."""
    records: Records = []
    assembly.advance(watched_by(watchers, assembly, records))
    return averaged_model(assembly), records


def watched_by(
    watchers: Sequence[Watcher], assembly: Assembly, records: Records
) -> Callable[[], None]:
    """What to do after a step, so that `records` grow."""
    for watcher in watchers:
        watcher.start(assembly)

    def after_step() -> None:
        for watcher in watchers:
            if watcher.due(assembly):
                records.extend(watcher.measure(assembly))

    return after_step
