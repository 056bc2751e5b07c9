"""How far chance moves one round: the spread of models that start alike and see other samples.

From the workers at the end of phase 1, H steps of post-local SGD and of mini-batch SGD, repeated
with other orders. The paper (section 5) has local steps see noise of K Σ in place of Σ: that is one
worker's model before it is averaged. The model that goes on is the average.

Letters: r repeats, n scalars of a row.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import torch
from torch import Tensor

from experiments.landscape.arms import Fork, advance, resumed
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task


def spread(rows: Tensor) -> float:
    """The trace of the covariance of rows [r, n], unbiased."""
    return float(rows.double().var(dim=0).sum())


def spreads(runs: dict[str, Run], task: Task, fork: Fork, steps: int, repeats: int) -> Any:
    """A record: for each arm the spread of the averaged model and of worker 0's just before."""
    found: dict[str, Any] = {"kind": "round spread", "local_steps": steps, "repeats": repeats}
    for arm, run in runs.items():
        pairs = [_round(_other_order(run, again), task, fork, steps) for again in range(repeats)]
        workers, averaged = (torch.stack(rows) for rows in zip(*pairs, strict=True))
        found[arm] = {"worker": spread(workers), "averaged": spread(averaged)}
    return found


def _other_order(run: Run, again: int) -> Run:
    return msgspec.structs.replace(run, seed=1_000_000 + 1000 * run.seed + again)


def _round(run: Run, task: Task, fork: Fork, steps: int) -> tuple[Tensor, Tensor]:
    """Worker 0's row after its last local step, and the row on which all synchronise then."""
    assembly = resumed(run, task, fork)
    last: list[Tensor] = []

    def keep() -> None:
        last[:] = [assembly.workers.params[0].clone()]

    assembly.workers.around_steps(after=keep)
    advance(assembly, fork.step + steps)
    return copy.deepcopy(last[0]), assembly.workers.params[0].clone()
