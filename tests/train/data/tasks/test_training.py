"""Two steps of two workers with each family of models, through the trainer."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task
from localsgd.train.engine.execution import prepare
from tests.conformance.test_tasks import made_up, made_up_folder, made_up_text
from tests.runs import Silent

pytestmark = pytest.mark.timeout(120)


def fewer(task: Task) -> Task:
    """With a small test set, as its size is the time that a run takes here."""
    if task.card.sequential:
        return replace(task, card=replace(task.card, test_size=3), test=task.test[:100])  # type: ignore[call-arg]
    return task


@pytest.mark.parametrize(
    ("model", "make"),
    [
        ("densenet10-4", made_up),
        ("wrn10-1", made_up),
        ("imagenet-resnet50-4", made_up_folder),
        ("lstm-3x8", made_up_text),
        ("lstm-1x8-tied", made_up_text),
    ],
)
def test_two_steps_of_two_workers(model: str, make, tmp_path: Path) -> None:
    task = fewer(make())
    settings = {"model": model, "workers": 2, "batch": 3, "method": "local", "local_steps": (2,)}
    epochs = 12 / task.train_size
    run = complete_run(Run(task=task.name, epochs=epochs, **settings), task.card)
    execution = prepare(run, task, tmp_path / "run", Silent())
    start = execution.assembly.workers.params.clone()
    summary = execution.train()
    params = execution.assembly.workers.params
    assert (summary["steps"], summary["syncs"]) == (2, [1])
    assert torch.equal(params[0], params[1])
    assert not torch.equal(params, start)
    assert params.isfinite().all()
    assert math.isfinite(summary["test_loss"])
    assert summary[task.card.metric.key] == execution.folder.metrics()[-1][task.card.metric.key]
