"""Named tasks with real data, and models for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from localsgd.basics.outside import Outside
from localsgd.errors import UserError, short
from localsgd.train.data import models
from localsgd.train.data.task import Card, Defaults, Task
from localsgd.train.data.tasks import cifar, digits, fashion_mnist, imagenet, wikitext
from localsgd.train.data.tasks.download import Progress
from localsgd.train.data.tasks.entry import Entry, Source

__all__ = [
    "Card",
    "Defaults",
    "Entry",
    "Row",
    "Source",
    "Task",
    "card",
    "describe",
    "load",
    "models",
    "task_names",
]

# A new task joins by a line here.
_ENTRIES: dict[str, Entry] = {
    entry.card.name: entry
    for entry in (
        digits.ENTRY,
        fashion_mnist.ENTRY,
        cifar.CIFAR10_ENTRY,
        cifar.CIFAR100_ENTRY,
        imagenet.ENTRY,
        imagenet.PER_PIXEL_ENTRY,
        wikitext.ENTRY,
    )
}


def _check(what: str, part: Any) -> None:
    if not isinstance(part, Entry):
        raise UserError(
            f"{what} is {short(part)}; give a localsgd.train.data.tasks.Entry: a card, and "
            "functions that find and load the data"
        )


OUTSIDE = Outside("task", "localsgd.tasks", lambda: _ENTRIES, _check)
"""Of other packages: entries."""


@dataclass(frozen=True)
class Row:
    """A task as `localsgd tasks` lists it, with the folder of its data if it was found.

    `made` says that there is none, as the data is made when the task is loaded.
    """

    card: Card
    found: Path | None
    made: bool = False


def task_names() -> tuple[str, ...]:
    """The tasks by name."""
    return (*_ENTRIES, *OUTSIDE.names())


def card(name: str) -> Card:
    """The card of a task, known before its data is read.

    Raises:
        UserError: no such task.
    """
    return _entry(name).card


def _entry(name: str) -> Entry:
    return _ENTRIES[name] if name in _ENTRIES else OUTSIDE[name]


def load(
    name: str,
    data_dir: Path | None = None,
    *,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    augment: bool | None = None,
) -> Task:
    """The task `name` with its data on `device`, downloaded first if it is missing.

    Data is looked for in `data_dir`, $LOCALSGD_DATA and ~/.cache/localsgd; a download goes to the
    first of them that is named. `progress` is told of a download's bytes. `augment` turns random
    crops and flips on or off if the task's own choice (on for CIFAR) isn't wanted.

    Raises:
        UserError: no such task; data that is missing and can't be had, or is damaged.
    """
    return _entry(name).load(Source(data_dir, device, progress, augment))


def describe(data_dir: Path | None = None) -> tuple[Row, ...]:
    """All tasks, and whether their data was found. Reads and downloads nothing."""
    entries = map(_entry, task_names())
    return tuple(_row(entry, data_dir) for entry in entries)


def _row(entry: Entry, data_dir: Path | None) -> Row:
    if entry.find is None:
        return Row(entry.card, None, made=True)
    return Row(entry.card, entry.find(data_dir))
