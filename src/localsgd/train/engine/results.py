"""Reads and checks the evaluations and summary in a run's folder.

Numbers that were not finite are null in the files, and NaN here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from localsgd.basics.files import read_text
from localsgd.basics.strict_json import number
from localsgd.basics.typed_json import check_value
from localsgd.basics.units import WHOLE, plural
from localsgd.errors import UserError
from localsgd.train.data.metric import ACCURACY, METRICS, metric_of

Count = Annotated[int, Meta(ge=0, le=WHOLE - 1)]
Amount = Annotated[float, Meta(ge=0, le=1e18)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Traffic(msgspec.Struct):
    """What a level's entry of the ledger holds; older versions did not know what arrived."""

    calls: Count
    bytes: Count
    seconds: Amount
    arrived: Count = 0


class _Row(msgspec.Struct):
    """The fields of every evaluation, without the value of its metric."""

    step: Count
    epoch: Amount
    train_loss: float | None
    test_loss: float | None
    lr: float | None
    syncs: list[Count]
    ledger: list[Traffic]
    seconds: Amount
    local_steps: list[Count] = []
    drift: dict[str, float | None] = {}


class _Summary(msgspec.Struct):
    """The fields of every summary, without the values of its metric."""

    test_loss: float | None
    train_loss: float | None
    best_epoch: Amount | None
    steps: Count
    samples: Count
    syncs: list[Count]
    ledger: list[Traffic]
    seconds: Amount
    paused: dict[str, Amount] = {}
    diverged: bool = False


def read_rows(path: Path, levels: int) -> list[dict[str, Any]]:
    """The evaluations in a file, oldest first; a last line cut short by a crash is left out.

    Args:
        path: of the file.
        levels: of the run.

    Raises:
        UserError: names the line that is no evaluation.
    """
    rows: list[dict[str, Any]] = []
    for at, found in read_lines(path):
        rows.append(_row(found, f"{path}:{at}", levels))
        if metric_of(rows[-1]) is not metric_of(rows[0]):
            raise UserError(f"{path}:{at} is damaged: it has another metric than the first line")
    return rows


MOST_OF_LINES = 1 << 34
"""Most bytes of a file of records: those of `--watch` grow with rounds and workers."""


def read_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """The values of JSON lines, each with its number; a last line cut short is left out."""
    lines = read_text(path, MOST_OF_LINES).splitlines()
    for at, line in enumerate(lines, start=1):
        try:
            yield at, json.loads(line)
        except (ValueError, RecursionError) as error:
            if at < len(lines):
                raise UserError(f"{path}:{at} is damaged: {error}; remove that line") from None


def summary_of(found: dict[str, Any], path: Path, levels: int) -> dict[str, Any]:
    """A checked summary of a run of so many levels, with its numbers as they were written."""
    _check(found, _Summary, str(path), levels)
    keys = [metric.key for metric in METRICS if metric.key in found]
    for metric in METRICS:
        if metric.key in found:
            found = {metric.local: None, metric.best: None, **found}
    return _numbers(found, ("test_loss", "train_loss", *keys))


def _row(found: Any, where: str, levels: int) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise UserError(f"{where} is damaged: it is no evaluation; remove that line")
    keys = [name for metric in METRICS for name in (metric.key, metric.local) if name in found]
    _check(found, _Row, where, levels)
    return _numbers(found, ("train_loss", "test_loss", "lr", *keys))


def _check(found: dict[str, Any], kind: type, where: str, levels: int) -> None:
    check_value(found, kind, where)
    for metric in METRICS:
        known = Share | None if metric is ACCURACY else float | None
        for name in (metric.key, metric.local, metric.best):
            check_value(found.get(name), known, where, name)
    if not any(metric.key in found for metric in METRICS):
        raise UserError(f"{where} is damaged: it has no {METRICS[0].key}")
    for name in ("syncs", "ledger", "local_steps"):
        if name in found and len(found[name]) != levels:
            raise UserError(
                f"{where} is damaged: {name} has {len(found[name])} parts, and the run has "
                f"{plural(levels, 'level')}"
            )


def _numbers(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {**found, **{name: number(found[name]) for name in names}}
