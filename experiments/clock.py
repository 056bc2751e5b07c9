"""A modelled clock for runs whose workers share one machine here: time in local steps.

    T = steps + price(K) · syncs,      price(K) = price(16) · log2(K) / 4

The price of a sync of 16 workers, in local steps, is fitted to the paper's minutes by H
(tab:multi_gpus_local_sgd_extreme_time: 8x2 GPUs, ResNet-20, B = 128); log2 K is the paper's own
model of an all-reduce (Eq. comm_cost). Steps and syncs are those that were counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from experiments.cost_model import published
from experiments.study import Record
from localsgd.cost.speedup import Clock

FITTED = 32
"""Largest H for which the paper's minutes follow the model."""
NOTE = (
    "Time is modelled: counted steps and syncs, a sync of 16 workers at the price "
    "fitted to the paper's minutes by H, of others by log2 K. It says what the paper's network "
    "would make of these runs, not how long they took here."
)


@cache
def price(workers: int) -> float:
    """The price of a sync of this many workers, in local steps."""
    clock = Clock.fit({h: t for h, t in published.MINUTES.items() if h <= FITTED})
    return clock.syncing / clock.compute * math.log2(workers) / math.log2(published.WORKERS)


def per_step(record: Record, workers: int) -> float:
    """Mean time of a local step, syncs included."""
    return 1 + price(workers) * sum(record["syncs"]) / record["steps"]


def steps_to(record: Record, target: float) -> float | None:
    """Local steps until the test accuracy reaches `target`, between two evaluations in proportion;
    `None` if it never does.
    """
    before = (0.0, 0.0)
    epochs = record["curve"][-1][0]
    for epoch, accuracy, _ in record["curve"]:
        if accuracy is None:
            continue
        if accuracy >= target:
            part = (target - before[1]) / (accuracy - before[1])
            return (before[0] + part * (epoch - before[0])) / epochs * record["steps"]
        before = (epoch, accuracy)
    return None


def time_to(record: Record, workers: int, target: float) -> float | None:
    """Modelled time until the test accuracy reaches `target`, for a constant H."""
    steps = steps_to(record, target)
    return None if steps is None else steps * per_step(record, workers)


def known(times: Sequence[float | None]) -> list[float]:
    return [time for time in times if time is not None]
