"""The paper's tables and figures by their labels: what `paper.toml` holds, as values.

>>> entry("signs").label
'tab:improve_sign_sgd'
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch import nn

from localsgd.errors import unknown_name
from localsgd.train.data import models, tasks

PAPER = Path(__file__).with_name("paper.toml")
PASSES = 6
"""Operations of training for a multiply-accumulate of the forward pass: the backward pass costs two
forward ones, and a multiply-accumulate is two operations.
"""


class Training(NamedTuple):
    """Runs of the full size that an entry names, tuning left out."""

    model: str
    task: str
    epochs: int
    runs: int


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table or figure. The fields are explained at the head of `paper.toml`."""

    label: str
    name: str
    alias: str | None = None
    panels: tuple[str, ...] = ()
    part: Literal["main", "appendix"]
    kind: Literal["table", "figure", "drawing"]
    shows: str
    setting: str
    needs: Literal["cpu", "gpu", "beyond"]
    training: tuple[Training, ...] = ()
    command: str | None = None
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str | int | float, ...], ...] = ()

    def __post_init__(self) -> None:
        if odd := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"{self.label}: {odd[0]} does not fit the columns {self.columns}")

    @property
    def values(self) -> list[dict[str, Any]]:
        """The rows, by column."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    @property
    def both(self) -> str:
        """The short name, with the other one if there is one: `arms (headline)`."""
        return self.name if self.alias is None else f"{self.name} ({self.alias})"

    @property
    def operations(self) -> float:
        """Floating-point operations of all runs of the full size; 0 if nothing is trained."""
        return sum(map(_operations, self.training))


@cache
def entries() -> dict[str, Entry]:
    """All entries by label, in the paper's order."""
    content = tomllib.loads(PAPER.read_text(encoding="utf-8"))
    return {
        label: msgspec.convert({"label": label, **fields}, Entry)
        for label, fields in content.items()
    }


def entry(name: str) -> Entry:
    """The entry with that label, that label of a panel, or that short name.

    Raises:
        UserError: there is none; the nearest is named.
    """
    for found in entries().values():
        if name in (found.label, found.name, found.alias, *found.panels):
            return found
    raise unknown_name("table or figure", name, list(_names()))


def _names() -> Iterator[str]:
    for found in entries().values():
        yield found.name
        yield found.label
        if found.alias:
            yield found.alias
        yield from found.panels


def _operations(training: Training) -> float:
    card = tasks.card(training.task)
    forward = size_of(training.model, training.task).multiplications
    return PASSES * forward * card.train_size * training.epochs * training.runs


class Size(NamedTuple):
    """A network in numbers: how much it sends, and how much it computes.

    Where the ratio of the two is small, communication weighs more, and local SGD saves more (You,
    Gitman, Ginsburg, Scaling SGD batch size to 32K for ImageNet training, 2017).
    """

    parameters: int
    multiplications: int
    """Multiply-adds of the forward pass of one sample."""

    @property
    def ratio(self) -> float:
        """Multiply-adds for each parameter."""
        return self.multiplications / self.parameters


def network(model: str, task: str, words: int | None = None) -> nn.Module:
    """A network for a task whose data need not be there, or for a text of so many `words`."""
    card = tasks.card(task)
    card = replace(card, classes=words or card.classes)
    kind: Any = SimpleNamespace(card=card, input_shape=card.input_shape, classes=card.classes)
    return models.build(model, kind, 0)


@cache
def size_of(model: str, task: str, words: int | None = None) -> Size:
    """The size of a network, counted where nothing is computed."""
    card = tasks.card(task)
    dtype = torch.int64 if card.sequential else torch.float32
    with torch.device("meta"):
        net = network(model, task, words)
        sample = torch.empty(1, *card.input_shape, dtype=dtype)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return Size(parameters, models.count_operations(net, sample))
