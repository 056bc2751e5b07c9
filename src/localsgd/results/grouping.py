"""Groups runs for a comparison: the seeds of one configuration together, with a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from localsgd.averaging.topology import Topology
from localsgd.errors import UserError
from localsgd.results.labels import local_steps, plain
from localsgd.train.config.parts import used_by_method
from localsgd.train.config.run import Run
from localsgd.train.data.metric import ACCURACY, Metric, metric_of
from localsgd.train.engine.run_folder import Folder

IN_TABLE = frozenset({"seed", "method", "topology", "workers", "local_steps"})
"""Settings that tables show separately, so that names leave them out."""
BY_METHOD = ("local_steps", "switch", "step_warmup", "step_warmup_shape")
"""Settings that some methods do not read."""


@dataclass(frozen=True)
class Record:
    """The contents of a run's folder.

    Args:
        folder: the folder.
        run: its configuration.
        rows: evaluations, oldest first.
        summary: the results; `None` while the run has not ended.
    """

    folder: Folder
    run: Run
    rows: list[dict[str, Any]]
    summary: dict[str, Any] | None

    @staticmethod
    def read(folder: Folder) -> Record:
        found = Record(folder, folder.run, folder.metrics(), folder.summary())
        if found.rows and metric_of(found.rows[0]) is not found.metric:
            raise UserError(
                f"{folder.path} is damaged: metrics.jsonl and summary.json have different metrics"
            )
        return found

    @property
    def last(self) -> dict[str, Any]:
        """The newest numbers: the summary, or the last evaluation while there is none."""
        return self.summary or (self.rows[-1] if self.rows else {})

    @property
    def metric(self) -> Metric:
        """The metric of the run's model."""
        return metric_of(self.last)


def is_diverged(summary: Mapping[str, Any]) -> bool:
    """Whether a run has diverged; in old records only the loss shows it."""
    return summary.get("diverged", False) or not math.isfinite(summary["test_loss"])


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation of a number over runs; no deviation for one run."""

    mean: float
    deviation: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        if not values:
            return None
        mean = sum(values) / len(values)
        if len(values) == 1:
            return Spread(mean, None)
        squares = sum((value - mean) * (value - mean) for value in values)  # ** may raise
        return Spread(mean, math.sqrt(squares / (len(values) - 1)))


@dataclass(frozen=True)
class Point:
    """One evaluation of the runs of a group.

    Args:
        epoch: passes over the training set.
        bytes: sent by a worker until then, by level.
        quality: on test data, in the runs' metric.
    """

    epoch: float
    bytes: tuple[float, ...]
    quality: Spread


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone.

    Args:
        label: the method, and the settings in which it differs from the others beside it.
        records: one for each run.
    """

    label: str
    records: tuple[Record, ...]

    @property
    def run(self) -> Run:
        return self.records[0].run

    @property
    def title(self) -> str:
        """The label with H, for tables without a column for H."""
        return f"{self.label}, H = {local_steps(self.run)}"

    @property
    def levels(self) -> int:
        return Topology.parse(self.run.topology or 8).levels

    def spread(self, figure: Callable[[dict[str, Any]], float | None]) -> Spread | None:
        """Mean and deviation of a number in the runs' newest results, if they have it."""
        values = [figure(record.last) for record in self.records if record.last]
        return Spread.of([value for value in values if value is not None])

    @property
    def drawn(self) -> list[Record]:
        """The runs that the curve is of."""
        begun = [record for record in self.records if record.rows]
        return [record for record in begun if record.summary] or begun

    @cached_property
    def curve(self) -> list[Point]:
        """Evaluations in order, over the runs that have ended, or all while none has.

        It ends where not all of them are: a mean over fewer runs than before would jump.
        """
        runs = self.drawn
        rows: dict[int, list[dict[str, Any]]] = {}
        for record in runs:
            for row in record.rows:
                rows.setdefault(row["step"], []).append(row)
        return [_point(rows[step]) for step in sorted(rows) if len(rows[step]) == len(runs)]


def _point(rows: list[dict[str, Any]]) -> Point:
    quality = Spread.of([row[metric_of(row).key] for row in rows])
    assert quality is not None
    levels = zip(*([entry["bytes"] for entry in row["ledger"]] for row in rows), strict=True)
    return Point(rows[0]["epoch"], tuple(sum(level) / len(rows) for level in levels), quality)


def metric(groups: Sequence[Group]) -> Metric:
    """The metric of the runs.

    Raises:
        UserError: the runs have different metrics.
    """
    begun = [record for group in groups for record in group.records if record.last]
    found = list(dict.fromkeys(record.metric.name for record in begun))
    if len(found) > 1:
        raise UserError(
            f"runs judged by {' and by '.join(found)} can't be compared; show them apart"
        )
    return begun[0].metric if begun else ACCURACY


def groups(folders: Sequence[Folder]) -> list[Group]:
    """The runs in `folders`, in order, grouped if they differ only in seeds."""
    found: dict[str, list[Record]] = {}
    for folder in folders:
        record = Record.read(folder)
        key = msgspec.json.encode(_settings(record.run) | {"seed": 0}).decode()
        found.setdefault(key, []).append(record)
    settings = [_settings(records[0].run) for records in found.values()]
    differing = [name for name in _differing(settings) if name not in IN_TABLE]
    return [
        Group(_label(values, differing), tuple(records))
        for values, records in zip(settings, found.values(), strict=True)
    ]


def differing(groups: Sequence[Group]) -> list[str]:
    """The settings in which groups differ; those that a method does not read are left out."""
    return _differing([_settings(group.run) for group in groups])


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Versions of packages are left out unless they alone tell some apart."""
    found = [
        name
        for name in (settings[0] if settings else {})
        if name != "seed" and _differs([values[name] for values in settings])
    ]
    chosen = [name for name in found if name != "plugins"]
    apart = {repr([values[name] for name in chosen]) for values in settings}
    return chosen if len(apart) == len(settings) else found


def _settings(run: Run) -> dict[str, Any]:
    """What the run depends on: a setting that its method does not read is left open."""
    values = msgspec.structs.asdict(run)
    uses = used_by_method(run)
    for name in BY_METHOD:
        if uses is not None and name.removesuffix("_shape") not in uses:
            values[name] = None
    return values


def _differs(values: list[Any]) -> bool:
    """Whether the runs that have the setting have different values."""
    return len({repr(value) for value in values if value is not None}) > 1


def _label(values: dict[str, Any], differing: Sequence[str]) -> str:
    extras = [f"{name} {plain(values[name])}" for name in differing if values[name] is not None]
    return ", ".join([values["method"], *extras])
