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

from experiments.registry import entry
from experiments.study import Record
from localsgd.cost.speedup import Clock

WORKERS = 16
"""K of the paper's times: 8 servers of 2 GPUs, 10 Gbit/s between servers, B = 128."""
STEPS = 300 * 25
"""Local steps of a worker in the paper's minutes: 300 epochs of ceil(50,000 / (16 * 128)) = 25, the
last of an epoch short, as in the paper's code. Its Eq. comm_cost, with batches across epochs, has
7,325 of them.
"""
FITTED = 32
"""Largest H for which the paper's minutes follow the model: beyond, times rise again."""
NOTE = (
    "Time is modelled: counted steps and syncs, a sync of 16 workers at the price "
    "fitted to the paper's minutes by H, of others by log2 K. It says what the paper's network "
    "would make of these runs, not how long they took here."
)


def minutes() -> dict[int, float]:
    """The paper's minutes of a training, by H."""
    return {row["local_steps"]: row["minutes"] for row in entry("many-local-steps").values}


@cache
def fitted() -> Clock:
    """T(H) = compute + syncing / H through the paper's minutes, as far as they fall."""
    return Clock.fit({h: time for h, time in minutes().items() if h <= FITTED})


def price(workers: int) -> float:
    """The price of a sync of this many workers, in local steps."""
    return fitted().syncing / fitted().compute * math.log2(workers) / math.log2(WORKERS)


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
