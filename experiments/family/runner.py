"""Trains one run and stores its results, by its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from experiments.lines import whole_lines
from experiments.store import origin
from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task
from localsgd.train.engine.execution import prepare
from localsgd.train.engine.observer import Observer


class _Row(msgspec.Struct):
    """What is told of a run."""

    arm: str
    settings: dict[str, Any]
    test_accuracy: float
    syncs: Annotated[list[int], msgspec.Meta(min_length=1)]
    bytes: list[int]


class Kept:
    """The finished runs of one file of JSON lines; a last line cut short is passed over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = list(whole_lines(path, _Row))

    def find(self, settings: Mapping[str, Any]) -> dict[str, Any] | None:
        """The run with these settings."""
        wanted = json.loads(json.dumps(settings))
        return next((row for row in self.rows if row["settings"] == wanted), None)

    def add(self, row: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        cut_short = self.path.exists() and not self.path.read_text().endswith("\n")
        with self.path.open("a") as file:
            file.write(("\n" if cut_short else "") + json.dumps(row) + "\n")
        self.rows.append(json.loads(json.dumps(row)))


def carry_out(arm: str, settings: Mapping[str, Any], task: Task, path: Path) -> dict[str, Any]:
    """The record of one run, which is trained in a temporary folder."""
    run = Run(**settings)
    if run.train_samples is not None:
        task = task.subset(run.train_samples)
    execution = prepare(complete_run(run, task.card), task, path, Observer())
    summary = execution.train()
    assembly = execution.assembly
    return {
        "arm": arm,
        "settings": dict(settings),
        "test_accuracy": summary["test_accuracy"],
        "train_loss": summary["train_loss"],
        "steps": summary["steps"],
        "local_steps_taken": sum(assembly.workers.taken),
        "syncs": summary["syncs"],
        "bytes": [entry["bytes"] for entry in summary["ledger"]],
        "seconds": round(summary["seconds"], 2),
        "made": origin(),
    }
