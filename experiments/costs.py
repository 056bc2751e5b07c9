"""The time of jobs on one core: measured if they are done, else estimated.

A run's cost follows from the samples it trains on, of which runs that share a trunk train the first
ones once. What a sample costs is taken from finished runs of the same network and task; where there
are none, from the network's operations and a core's usual speed. Other jobs may say what they are
expected to take (`expected_seconds`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from experiments.registry import PASSES, size_of
from experiments.store import Store
from experiments.study import Job
from experiments.training import TrainJob
from localsgd.train.config.complete import complete_run
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.data import tasks
from localsgd.train.engine.trunk import own_samples

CORE = 50e9
"""Operations a second of one core, in float32, in networks large enough to keep it busy."""
OVERHEAD = 70e-6
"""Seconds of a sample beside its operations, in batches of 16."""
MEASURED = {
    "resnet20-identity": 2.9e-3,
    "mlp-64": 90e-6,
    "small-cnn-8": 0.5e-3,
    "resnet8": 3.0e-3,
    "densenet10-8": 2.7e-3,
    "wrn10-1": 2.6e-3,
}
"""Seconds of a sample on one core in small networks, which keep it less busy."""
FIXED = 0.2
"""Seconds of a run beside its samples."""
Known = dict[tuple[str, str], float]
"""Seconds of a sample, by task and network."""


def seconds(jobs: Sequence[Job], store: Store, known: Known | None = None) -> float | None:
    """Seconds of all jobs, done or not, on one core; `None` if one of them is unknown."""
    known = known if known is not None else calibrated(jobs, store)
    total, seen = 0.0, set[tuple[Run, int]]()
    for job in jobs:
        record = store.of(job)
        if isinstance(job, TrainJob):
            total += own_samples(planned(job), seen) * _of_sample(job, known) + FIXED
        elif record is not None and "seconds" in record:
            total += record["seconds"]
        elif (expected := getattr(job, "expected_seconds", None)) is not None:
            total += expected
        else:
            return None
    return total


def calibrated(jobs: Sequence[Job], store: Store) -> Known:
    """The time of samples in the finished runs."""
    found: dict[tuple[str, str], list[float]] = {}
    for job in jobs:
        record = store.of(job)
        if isinstance(job, TrainJob) and record is not None:
            plan = planned(job)
            samples = plan.steps * plan.batch
            found.setdefault(_kind(job), []).append(record["seconds"] / samples)
    return {kind: statistics.median(costs) for kind, costs in found.items()}


def planned(job: TrainJob) -> Plan:
    """The plan of a run, without its data."""
    card = tasks.card(job.run.task)
    samples = job.run.train_samples or card.train_size
    return Plan(complete_run(job.run, card), samples)


def _of_sample(job: TrainJob, known: Known) -> float:
    task, model = _kind(job)
    measured = known.get((task, model)) or MEASURED.get(model)
    if measured is not None:
        return measured
    return PASSES * size_of(model, task, job.words).multiplications / CORE + OVERHEAD


def _kind(job: TrainJob) -> tuple[str, str]:
    return job.run.task, job.run.model or tasks.card(job.run.task).default_model
