"""Runs' folders with made-up figures, and small real assemblies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from localsgd.averaging.placement import placement_of
from localsgd.show.forecast import syncs
from localsgd.train.config.complete import complete_run
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run
from localsgd.train.data.tasks import digits
from localsgd.train.data.tasks.digits import CARD
from localsgd.train.data.tasks.entry import Source
from localsgd.train.engine.assembly import Assembly, assemble
from localsgd.train.engine.run_folder import Folder

ROW_BYTES = 1000


def plan_of(**settings: Any) -> Plan:
    """The plan of a completed run on digits."""
    return Plan(complete_run(Run(**settings), CARD), CARD.train_size)


def small_assembly(**settings: Any) -> Assembly:
    """What trains a linear-sized model on digits in this process."""
    run = complete_run(Run(**{"model": "mlp-4", "topology": "2", "epochs": 1, **settings}), CARD)
    task = digits.load(Source(None, "cpu", None, None))
    return assemble(
        run, task, placement_of(Plan(run, CARD.train_size).topology), torch.device("cpu")
    )


def rows_of(plan: Plan, accuracies: list[float]) -> list[dict[str, Any]]:
    """Evenly spread evaluations with those accuracies."""
    rows = []
    for number, accuracy in enumerate(accuracies, start=1):
        step = plan.steps * number // len(accuracies)
        counts = syncs(plan, until=None if step == plan.steps else step)
        rows.append(
            {
                "step": step,
                "epoch": step / plan.steps_per_epoch,
                "train_loss": 2.0 / number,
                "test_loss": 2.2 / number,
                "test_accuracy": accuracy,
                "lr": plan.learning_rate(step - 1),
                "syncs": counts,
                "ledger": [
                    {"calls": count, "bytes": ROW_BYTES * count, "seconds": 0.5} for count in counts
                ],
                "seconds": 1.5 * number,
            }
        )
    return rows


def summary_of(plan: Plan, rows: list[dict[str, Any]]) -> dict[str, Any]:
    last = rows[-1]
    best = max(rows, key=lambda row: row["test_accuracy"])
    kept = ("test_accuracy", "test_loss", "train_loss", "syncs", "ledger", "seconds")
    return {
        **{name: last[name] for name in kept},
        "batch_norm": "mean",
        "local_accuracy": max(0.0, last["test_accuracy"] - 0.01),
        "best_accuracy": best["test_accuracy"],
        "best_epoch": best["epoch"],
        "steps": plan.steps,
        "samples": plan.steps * plan.batch,
        "paused": {"evaluating": 1.25, "saving": 0.5},
    }


def folder_of(
    path: Path, accuracies: list[float], *, ended: bool = True, **settings: Any
) -> Folder:
    """A run with made-up evaluations, `accuracies`; of one not ended, the first half of them."""
    plan = plan_of(**{"epochs": 4, **settings})
    folder = Folder.create(path, plan.run, {"device_name": "abacus", "processes": 2, "torch": "2"})
    rows = rows_of(plan, accuracies)
    for row in rows if ended else rows[: len(rows) // 2]:
        folder.append(row)
    if ended:
        folder.finish(summary_of(plan, rows), torch.nn.Linear(1, 1))
    return folder
