"""How long runs will take on this machine: from finished ones, else from a few measured steps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from localsgd.basics.units import duration, plural
from localsgd.cli.process_count import step_seconds, threads_of
from localsgd.train.config.plan import Plan, known
from localsgd.train.config.run import Run
from localsgd.train.data import tasks
from localsgd.train.data.task import Task
from localsgd.train.engine.run_folder import Folder
from localsgd.train.engine.trunk import own_samples

Kind = tuple[object, ...]
"""What the time of a sample depends on."""


@dataclass(frozen=True)
class Forecast:
    """The work that is left.

    Args:
        runs: all of them.
        ended: those that need nothing any more.
        seconds: of training and evaluating the others.
        saved_seconds: less, as first phases are shared.
    """

    runs: int
    ended: int
    seconds: float
    saved_seconds: float

    def __str__(self) -> str:
        done = f", {self.ended} of them done" if self.ended else ""
        if self.ended == self.runs:
            return f"{plural(self.runs, 'run')}{done}"
        saved = duration(self.saved_seconds)
        shared = f"; first phases that runs share save {saved}" if self.saved_seconds else ""
        return f"{plural(self.runs, 'run')}{done}: about {duration(self.seconds)} here{shared}"


def forecast(
    runs: Mapping[str, Run],
    folders: Mapping[str, Folder],
    processes: int,
    load: Callable[[Run], Task],
) -> Forecast:
    """The time that `runs` still take, one after the other.

    Args:
        runs: completed, by name.
        folders: where they are or will be.
        processes: that share a run's workers.
        load: reads the data of runs whose steps must be measured.
    """
    summaries = {name: folder.summary() for name, folder in folders.items()}
    costs = _known(runs, summaries)
    seen: set[tuple[Run, int]] = set()
    total = alone = 0.0
    for name, wanted in runs.items():
        plan = plan_of(wanted)
        whole = plan.steps * plan.batch
        own = own_samples(plan, seen)
        if summaries[name] is not None:
            continue
        cost = costs.get(kind := _kind(wanted))
        if cost is None:
            seconds = step_seconds(wanted, load(wanted), threads_of(processes))
            cost = costs[kind] = seconds / known(wanted.batch) / processes
        total += own * cost
        alone += whole * cost
    ended = sum(summary is not None for summary in summaries.values())
    return Forecast(len(runs), ended, total, alone - total)


def plan_of(wanted: Run) -> Plan:
    """The plan of a completed run, without its data."""
    return Plan(wanted, wanted.train_samples or tasks.card(wanted.task).train_size)


def _known(
    runs: Mapping[str, Run], summaries: Mapping[str, Mapping[str, object] | None]
) -> dict[Kind, float]:
    """Seconds of a sample in the runs that have ended, by kind: the median."""
    found: dict[Kind, list[float]] = {}
    for name, wanted in runs.items():
        summary: Mapping[str, object] | None = summaries[name]
        if summary is not None:
            found.setdefault(_kind(wanted), []).append(_seconds(summary) / _samples(summary))
    return {kind: statistics.median(costs) for kind, costs in found.items()}


def _seconds(summary: Mapping[str, object]) -> float:
    paused = summary.get("paused") or {}
    assert isinstance(paused, dict)
    return float(str(summary["seconds"])) + sum(paused.values())


def _samples(summary: Mapping[str, object]) -> float:
    return max(1.0, float(str(summary["samples"])))


def _kind(wanted: Run) -> Kind:
    names = ("task", "model", "batch", "precision", "channels_last", "compile", "device")
    return (*(getattr(wanted, name) for name in (*names, "batched")), *wanted.options)


def in_shards(runs: Mapping[str, Run], count: int) -> list[list[str]]:
    """The names of runs in pieces that one shard trains: together if they share a first phase.

    Where there are fewer such pieces than shards every run is a piece of its own.
    """
    pieces: dict[object, list[str]] = {}
    for name, wanted in runs.items():
        seen: set[tuple[Run, int]] = set()
        own_samples(plan_of(wanted), seen)
        first = min(seen, key=lambda point: point[1]) if seen else name
        pieces.setdefault(first, []).append(name)
    together = list(pieces.values())
    return together if len(together) >= count else [[name] for name in runs]


def names_in(pieces: Sequence[Sequence[str]]) -> list[str]:
    return [name for piece in pieces for name in piece]
