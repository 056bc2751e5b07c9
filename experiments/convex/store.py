"""Runs kept by configuration: JSON lines that only grow.

A line is one race: its configuration, and what it told of each step size. Lines are written whole;
a last line that an interruption cut short is cut off when the file is next opened, and its race
runs again.

    {"config": {...}, "seconds": 0.41, "runs": [["constant", 1, [[293, 0.1311, true, 293, [293]],
    null], [293, 354]], ...]}
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from experiments.convex.race import Reached, Run
from experiments.convex.stepsizes import Family, StepSize
from localsgd.basics.files import read_text
from localsgd.errors import UserError

Config = Mapping[str, Any]

_Reached = tuple[float, float, bool, int, list[int]]


class _Line(msgspec.Struct):
    """A race, as it is kept."""

    config: dict[str, Any]
    seconds: float
    runs: list[tuple[Family, int, list[_Reached | None], list[float]]]


class Store:
    """The runs of one file.

    Args:
        path: created when the first race ends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._runs: dict[str, list[Run]] = defaultdict(list)
        self._seconds: dict[str, float] = defaultdict(float)
        if path.is_file():
            self._load()

    def runs(self, config: Config) -> list[Run]:
        """All runs of a configuration."""
        return list(self._runs[_key(config)])

    def seconds(self, config: Config) -> float:
        """CPU seconds of a configuration's races."""
        return self._seconds[_key(config)]

    def add(self, config: Config, runs: Iterable[Run], seconds: float) -> None:
        """Stores the results of a race."""
        runs = list(runs)
        line = {"config": config, "seconds": round(seconds, 3), "runs": [_packed(r) for r in runs]}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._keep(config, runs, seconds)

    def _keep(self, config: Config, runs: Iterable[Run], seconds: float) -> None:
        self._runs[_key(config)].extend(runs)
        self._seconds[_key(config)] += seconds

    def _load(self) -> None:
        text = read_text(self.path)
        whole, newline, cut = text.rpartition("\n")
        if cut:
            self.path.write_text(whole + newline)
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                entry = json.loads(line)
                msgspec.convert(entry, _Line)
                self._keep(entry["config"], [_unpacked(r) for r in entry["runs"]], entry["seconds"])
            except (ValueError, OverflowError, RecursionError, msgspec.ValidationError) as error:
                raise UserError(
                    f"{self.path}:{number} is no record of a race ({error}); "
                    "delete the line to run it again"
                ) from error


def _key(config: Config) -> str:
    return json.dumps(config, sort_keys=True)


def _packed(run: Run) -> list[Any]:
    reached = [
        None if r is None else [r.clock, r.value, r.by_average, r.steps, list(r.syncs)]
        for r in run.reached
    ]
    return [run.size.family, run.size.exponent, reached, list(run.until)]


def _unpacked(packed: list[Any]) -> Run:
    family, exponent, reached, until = packed
    return Run(
        StepSize(family, exponent),
        tuple(None if r is None else Reached(r[0], r[1], r[2], r[3], tuple(r[4])) for r in reached),
        tuple(until),
    )
