"""One seed of a setting after the other; what is done is kept, and a second call goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from torch import nn

from experiments.landscape import arms, measures, rounds
from experiments.landscape.design import ARMS, FORKED, MANY, REPEATS, Setting
from experiments.lines import checked
from experiments.store import origin
from localsgd.train.data import tasks
from localsgd.train.data.task import Task
from localsgd.train.engine.results import read_lines
from localsgd.train.engine.run_folder import write_whole
from localsgd.train.engine.watching import DriftWatcher, Records, Watcher, lambda_max, noise

Say = Callable[[str], None]
ALL = 10**9
DIGITS = 6
"""Significant digits of what is kept."""


class _Record(msgspec.Struct):
    """What every record has."""

    seed: int
    kind: str


def load(setting: Setting, data_dir: Path | None) -> Task:
    task = tasks.load(setting.task, data_dir)
    return task.subset(setting.train_samples) if setting.train_samples else task


def study(setting: Setting, task: Task, path: Path, say: Say, seeds: int | None = None) -> Records:
    """All seeds of a setting, or the first so many; those that were missing join the file.

    Lines of a seed that was cut short are dropped from it first.
    """
    kept = read(path)
    whole = _content(kept)
    if path.is_file() and path.read_bytes() != whole:
        write_whole(path, whole)
    done = {record["seed"] for record in kept}
    for seed in range(setting.seeds)[:seeds]:
        if seed not in done:
            new = [{"seed": seed, **rounded(r)} for r in one_seed(setting, task, seed, say)]
            with path.open("ab") as file:
                file.write(_content(new))
            kept += new
    return kept


def read(path: Path) -> Records:
    """The records of whole seeds, without lines of one that was cut short. The file is as before:
    what is not read here may be a seed that another process is writing.
    """
    lines = read_lines(path) if path.exists() else ()
    found = [checked(one, _Record, f"{path}:{at}") for at, one in lines]
    whole = {record["seed"] for record in found if record["kind"] == "effort"}
    return [record for record in found if record["seed"] in whole]


def _content(records: Records) -> bytes:
    return "".join(json.dumps(r, separators=(",", ":")) + "\n" for r in records).encode()


def one_seed(setting: Setting, task: Task, seed: int, say: Say) -> Records:
    """Trains all arms and measures them; ends with a record of the effort."""
    began = time.process_time()
    records: Records = []
    models: dict[str, nn.Module] = {}
    runs = {arm: setting.completed(arm, seed, tasks.card(setting.task)) for arm in ARMS}
    say(f"{setting.name}, seed {seed}: phase 1")
    fork, watched = arms.phase_one(runs["H=1"], task, [_noise(setting)])
    records += [{"model": "H=1", **record} for record in watched]
    for arm, run in runs.items():
        say(f"{setting.name}, seed {seed}: {arm}")
        assembly = arms.resumed(run, task, fork) if arm in FORKED else arms.assembled(run, task)
        models[arm], watched = arms.trained(assembly, _watchers(setting, arm))
        records += [{"model": arm, **_compact(record)} for record in watched]
    spreads = {arm: runs[arm] for arm in ("H=1", f"H={MANY}")}
    say(f"{setting.name}, seed {seed}: {REPEATS} rounds again")
    records.append(rounds.spreads(spreads, task, fork, MANY, REPEATS))
    trained_in = time.process_time() - began
    say(f"{setting.name}, seed {seed}: measuring")
    records += measures.measured(models, task, setting, seed)
    if seed == 0:
        records += measures.the_plane(models, task, setting)
    seconds = time.process_time() - began
    effort = {"training_seconds": trained_in, "seconds": seconds}
    return [*records, {"kind": "effort", **effort, "made": origin(seconds)}]


def _watchers(setting: Setting, arm: str) -> list[Watcher]:
    watchers: list[Watcher] = []
    if arm in FORKED:
        watchers.append(lambda_max(setting.every, _samples(setting)))
    if arm in measures.SHAPES and not arm.startswith("scratch"):
        watchers.append(_noise(setting))
    if arm == f"H={MANY}":
        watchers.append(DriftWatcher())
    return watchers


def _noise(setting: Setting) -> Watcher:
    return noise(setting.epochs / 6, _samples(setting))


def _samples(setting: Setting) -> int:
    return setting.samples or ALL


def _compact(record: dict[str, Any]) -> dict[str, Any]:
    """Without a number for each worker: their mean, in its place."""
    if record["kind"] != "drift":
        return record
    means = {k: [sum(record[k]) / len(record[k])] for k in ("to_mean", "updates")}
    return {**record, **means}


def rounded(value: Any) -> Any:
    """A record with as many digits as are kept."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    return value
