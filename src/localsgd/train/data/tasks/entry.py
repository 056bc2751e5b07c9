"""The entry of a task, with which it is listed and loaded. Every task's file defines one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from localsgd.train.data.task import Card, Task
from localsgd.train.data.tasks.download import Progress


@dataclass(frozen=True)
class Source:
    """How a task is loaded: the folder of its data, the tensors' device, and augmentation."""

    data_dir: Path | None
    device: torch.device | str = "cpu"
    progress: Progress | None = None
    augment: bool | None = None
    """Random crops and flips; None leaves it to the task."""


@dataclass(frozen=True)
class Entry:
    """A task by its card, with `find` (looks for its data on this machine) and `load`.

    `find` is None for data that is made, and lies nowhere.
    """

    card: Card
    find: Callable[[Path | None], Path | None] | None
    load: Callable[[Source], Task]
