"""Reads and checks the evaluations and summary in a run's folder.

Numbers that were not finite are null in the files, and NaN here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from localsgd.basics.files import read_text
from localsgd.basics.refused import explained
from localsgd.basics.strict_json import number
from localsgd.errors import UserError
from localsgd.train.data.metric import METRICS


class _Entry(msgspec.Struct):
    calls: int
    bytes: int
    seconds: float


class _Row(msgspec.Struct):
    """The fields of every evaluation, without the value of its metric."""

    step: int
    epoch: float
    train_loss: float | None
    test_loss: float | None
    lr: float | None
    syncs: list[int]
    ledger: list[_Entry]
    seconds: float


class _Summary(msgspec.Struct):
    """The fields of every summary, without the values of its metric."""

    test_loss: float | None
    train_loss: float | None
    best_epoch: float | None
    steps: int
    samples: int
    syncs: list[int]
    ledger: list[_Entry]
    seconds: float
    paused: dict[str, float] = {}
    diverged: bool = False


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The evaluations in a file, oldest first; a last line cut short by a crash is left out.

    Raises:
        UserError: names the line that is no evaluation.
    """
    if not path.exists():
        return []
    lines = read_text(path).splitlines()
    return [_row(found, f"{path}:{at}") for at, found in read_lines(path, lines)]


def read_lines(path: Path, lines: list[str]) -> Iterator[tuple[int, Any]]:
    """The values of JSON lines, each with its number; a last line cut short is left out."""
    for at, line in enumerate(lines, start=1):
        try:
            yield at, json.loads(line)
        except (ValueError, RecursionError) as error:
            if at < len(lines):
                raise UserError(f"{path}:{at} is damaged: {error}; remove that line") from None


def summary_of(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """A checked summary, with its numbers as they were written."""
    keys = [metric.key for metric in METRICS if metric.key in found]
    _check(found, _Summary, str(path), keys)
    for metric in METRICS:
        if metric.key in found:
            for name in (metric.local, metric.best):
                if not isinstance(found.setdefault(name, None), int | float | None):
                    raise UserError(f"{path} is damaged: {name} is no number")
    return _numbers(found, ("test_loss", "train_loss", *keys))


def _row(found: Any, where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise UserError(f"{where} is damaged: it is no evaluation; remove that line")
    keys = [name for metric in METRICS for name in (metric.key, metric.local) if name in found]
    _check(found, _Row, where, keys)
    return _numbers(found, ("train_loss", "test_loss", "lr", *keys))


def _check(found: dict[str, Any], kind: type, where: str, keys: list[str]) -> None:
    try:
        msgspec.convert(found, kind)
        msgspec.convert([found[name] for name in keys], list[float | None])
    except msgspec.ValidationError as error:
        place, reason = explained(error, kind)
        raise UserError(f"{where} is damaged: {f'{place}: ' * bool(place)}{reason}") from None
    if not any(metric.key in found for metric in METRICS):
        raise UserError(f"{where} is damaged: it has no {METRICS[0].key}")


def _numbers(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {**found, **{name: number(found[name]) for name in names}}
