"""Runs from Python: what the command line does, with objects of your own in place of names.

    from localsgd.train import Run

    result = Run(task="digits", method="local", workers=4, local_steps=8, epochs=3).train()
    result.score, result.curve("train_loss"), result.ledger.bytes, result.model

It needs `pip install 'localsgd[cli]'`. The rooms below are the trainer's inside, apart from
`localsgd.train.data`: tasks and models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from localsgd.train.config.methods import Method
    from localsgd.train.data.tasks.entry import Entry
    from localsgd.train.data.tasks.tensors import TensorTask, task_of
    from localsgd.train.engine.execution import Interrupted
    from localsgd.train.engine.observer import Observer
    from localsgd.train.plugins import add, use
    from localsgd.train.runs.result import Result, load
    from localsgd.train.runs.run import Limits, Run

__all__ = [
    "Entry",
    "Interrupted",
    "Limits",
    "Method",
    "Observer",
    "Result",
    "Run",
    "TensorTask",
    "add",
    "load",
    "task_of",
    "use",
]

_HOMES = {
    "config.methods": ["Method"],
    "data.tasks.entry": ["Entry"],
    "data.tasks.tensors": ["TensorTask", "task_of"],
    "engine.execution": ["Interrupted"],
    "engine.observer": ["Observer"],
    "plugins": ["add", "use"],
    "runs.result": ["Result", "load"],
    "runs.run": ["Limits", "Run"],
}
"""Imported when they are asked for: tasks and checks are used without what the trainer needs."""


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"localsgd.train.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
