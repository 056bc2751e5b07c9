"""Runs in long form: a row for each run and evaluation, with the run's settings beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from localsgd.errors import UserError
from localsgd.results.grouping import Record
from localsgd.results.numbers import numbers_of
from localsgd.results.order import by_settings
from localsgd.train.engine.run_folder import Folder, runs_in

Row = dict[str, Any]


def folders_of(paths: Iterable[Path | str] | Path | str) -> list[Folder]:
    """The runs in `paths`: folders of runs, or folders of a sweep or a comparison.

    Paths stay in their order. The runs in one of them are sorted by their settings.

    Raises:
        UserError: a path has no run.
    """
    found: dict[Path, Folder] = {}
    for path in map(Path, [paths] if isinstance(paths, Path | str) else paths):
        inside = [] if (path / "run.json").is_file() else runs_in(path)
        runs = [Folder.open(each) for each in inside or [path]]
        if len(runs) > 1:
            runs.sort(key=lambda folder: (by_settings(folder.run), folder.path))
        found |= {folder.path.resolve(): folder for folder in runs}
    if not found:
        raise UserError("there are no runs; give folders of runs, or the folder of a sweep")
    return list(found.values())


def rows(paths: Iterable[Path | str] | Path | str) -> list[Row]:
    """A row for each run and evaluation, oldest first; all rows have the same columns.

    `run` is the folder's name, and `ended` says whether the run ended with this evaluation, which
    then has the numbers of the summary too. Then come the settings that differ between the runs,
    `seed`, the numbers (`numbers_of`; None if a run lacks one), and all other settings as in
    `run.json`, numbers by level as text (`2 8`).

    Raises:
        UserError: a path has no run, or one that is damaged.
    """
    records = [Record.read(folder) for folder in folders_of(paths)]
    settings = [
        {name: _plain(value) for name, value in msgspec.structs.asdict(record.run).items()}
        for record in records
    ]
    differing = [name for name in settings[0] if len({repr(each[name]) for each in settings}) > 1]
    first = list(dict.fromkeys([*differing, "seed"]))
    long = [
        (index, numbers) for index, record in enumerate(records) for numbers in _evaluations(record)
    ]
    names = dict.fromkeys(name for _, numbers in long for name in numbers)
    return [
        {
            "run": records[index].folder.path.resolve().name,
            "ended": numbers["ended"],
            **{name: settings[index][name] for name in first},
            **{name: numbers.get(name) for name in names},
            **{name: value for name, value in settings[index].items() if name not in first},
        }
        for index, numbers in long
    ]


def _evaluations(record: Record) -> list[Row]:
    found: list[Row] = [{**numbers_of(row), "ended": False} for row in record.rows]
    if record.summary is not None:
        last = found.pop() if found and found[-1]["step"] == record.summary["steps"] else {}
        found.append({**last, **numbers_of(record.summary), "ended": True})
    return found


def _plain(value: Any) -> Any:
    return (
        " ".join(map(str, value))
        if isinstance(value, Sequence | frozenset) and not isinstance(value, str)
        else value
    )


def columns(found: Sequence[Row]) -> dict[str, list[Any]]:
    """Rows as columns, each of one kind: what mixes numbers and text becomes text."""
    if not found:
        return {}
    return {name: _of_one_kind([row[name] for row in found]) for name in found[0]}


def _of_one_kind(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float} and len(kinds) == 2:
        return [None if value is None else float(value) for value in values]
    if len(kinds) > 1:
        return [None if value is None else str(value) for value in values]
    return values
