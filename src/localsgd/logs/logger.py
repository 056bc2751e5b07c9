"""What every logger does: evaluations and measurements become flat numbers by step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from localsgd.basics.strict_json import number
from localsgd.results.numbers import numbers_of
from localsgd.train.config.run import to_json
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.observer import Observer
from localsgd.train.engine.run_folder import Folder
from localsgd.train.engine.watching import records

Numbers = dict[str, float]


class Logger(Observer):
    """An observer that hands a run's numbers to one place. Only the first process needs one.

    A subclass says what to do with them in `begin`, `log` and `end`. The names are those of
    `localsgd export`; docs/logging.md lists them.

    Args:
        path: the run's folder. What was evaluated there before (the run is resumed, or goes on from
            a first phase that it shares with others) is logged first.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._last: Numbers = {}
        self._open = self._replaying = False

    @abstractmethod
    def begin(self, settings: Mapping[str, Any]) -> None:
        """Opens the log of a run with these settings, as in `run.json`."""

    @abstractmethod
    def log(self, step: int, numbers: Numbers) -> None:
        """Logs numbers after so many local steps.

        After resuming, steps that were logged before the run was cut off come once more.
        """

    def end(self) -> None:
        """Closes the log, whether the run has ended or was cut off."""

    def started(self, assembly: Assembly) -> None:
        self.begin(msgspec.json.decode(to_json(assembly.run)))
        self._open = self._replaying = True
        step = assembly.workers.step
        earlier = [*Folder(self.path).metrics(), *measurements(records(self.path))]
        for row in sorted(earlier, key=lambda row: row["step"]):
            if row["step"] <= step:
                self.evaluated(row) if "ledger" in row else self.measured([row])
        self._replaying = False

    def evaluated(self, row: dict[str, Any]) -> None:
        self._last = numbers_of(row)
        self.log(row["step"], _without_step(self._last))

    def measured(self, records: Sequence[Mapping[str, Any]]) -> None:
        for record in measurements(records):
            self.log(record["step"], measured_numbers(record))

    def finished(self, summary: dict[str, Any]) -> None:
        """Logs what the last evaluation did not have: the workers' own models, the best epoch."""
        found = numbers_of(summary)
        self.log(summary["steps"], {k: v for k, v in found.items() if k not in self._last})
        self.close()

    def close(self) -> None:
        """Closes the log; it may be called again."""
        if self._open:
            self._open = False
            self.end()


def _without_step(numbers: Numbers) -> Numbers:
    return {name: value for name, value in numbers.items() if name != "step"}


def measurements(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The records of `--watch` that have numbers to log."""
    return [dict(record) for record in records if measured_numbers(record)]


def measured_numbers(record: Mapping[str, Any]) -> Numbers:
    """The numbers of one record of `--watch`.

    drift_to_mean           mean Euclidean distance of the workers to their mean, before a sync
    drift_between           mean distance of two workers
    drift_alignment         ||mean update||^2 / mean ||update||^2
    lambda_max_train, ...   largest eigenvalue of the Hessian, by data
    """
    found: dict[str, float | None] = {}
    if record.get("kind") == "drift":
        away = [*map(number, record["to_mean"])]
        found["drift_to_mean"] = sum(away) / len(away)
        found["drift_between"] = record["between"]
        found["drift_alignment"] = record["alignment"]
    elif record.get("kind") == "largest eigenvalue":
        found[f"lambda_max_{record['data']}"] = record["largest"]
    return {name: value for name, value in found.items() if value is not None}
