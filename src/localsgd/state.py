"""Checkpoints: saved by worker, whole or not at all, and resumed to the same bits at any step.

A checkpoint is a folder `step-00000123` with one file for each worker and one for what all share. A
worker's file has its rows and its inner optimizer's state; the anchors of the groups whose first
worker it is; and the reducers' memory of the members whose first worker it is. So another split of
the same K workers over processes resumes with the same bits. All processes must see the same
folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from localsgd.assemble import Assembly
from localsgd.collective.metered import Entry
from localsgd.errors import UserError

KEPT = 2
"""Checkpoints that are kept: the newest, and one before it."""


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints in `folder`, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir() and path.suffix == "")


def save(
    assembly: Assembly, folder: Path, barrier: Callable[[], None], extra: dict[str, Any]
) -> None:
    """Writes a checkpoint of the step at hand. Every process must call it.

    Args:
        assembly: what trains.
        folder: of the run's checkpoints.
        barrier: returns once all processes have called it.
        extra: small values, equal on all processes, that `load` gives back.
    """
    rank = assembly.placement.rank
    final = folder / f"step-{assembly.workers.step:08d}"
    partial = final.with_suffix(".partial")
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    barrier()
    for row, worker in enumerate(assembly.workers.ids):
        _write(partial / _file(worker), _worker_state(assembly, row, worker))
    barrier()
    if rank == 0:
        common = {
            "step": assembly.workers.step,
            "position": asdict(assembly.position),
            "agreements": assembly.agreements,
            "ledger": [asdict(entry) for entry in assembly.ledger.levels],
            "sha256": {path.name: _sha256(path) for path in sorted(partial.iterdir())},
            "extra": extra,
        }
        (partial / "common.json").write_text(json.dumps(common))
        shutil.rmtree(final, ignore_errors=True)
        os.replace(partial, final)
        for old in checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
    barrier()


def load(assembly: Assembly, checkpoint: Path) -> dict[str, Any]:
    """Puts a checkpoint into a newly assembled run of the same configuration; returns `extra`."""
    common = read_common(checkpoint)
    for row, worker in enumerate(assembly.workers.ids):
        state = _read(checkpoint, worker, common)
        try:
            assembly.workers.load(row, state["worker"])
        except (KeyError, ValueError, RuntimeError) as error:
            raise UserError(f"{checkpoint / _file(worker)} is of another model: {error}") from None
    _load_levels(assembly, lambda worker: _read(checkpoint, worker, common)["levels"])
    assembly.workers.step = common["step"]
    for name, value in common["position"].items():
        setattr(assembly.position, name, value)
    for level, count in zip(assembly.levels, common["agreements"], strict=True):
        level.agreements = count
    for entry, saved in zip(assembly.ledger.levels, common["ledger"], strict=True):
        vars(entry).update(vars(Entry(**saved)))
    return common["extra"]


def read_common(checkpoint: Path) -> dict[str, Any]:
    """What all workers of a checkpoint share."""
    path = checkpoint / "common.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(f"checkpoint {checkpoint} is damaged: common.json: {error}") from None


def _worker_state(assembly: Assembly, row: int, worker: int) -> dict[str, Any]:
    levels = []
    for level, groups, members in assembly.placement.located(assembly.levels):
        state = level.state()
        memory = state.pop("reducer")
        saved: dict[str, Any] = {}
        for group, first in enumerate(groups):
            if first == worker:
                saved["group"] = _at(state, group)
            if worker in members[group]:
                saved["member"] = _at(_at(memory, group), members[group].index(worker))
        levels.append(saved)
    return {"worker": assembly.workers.state(row), "levels": levels}


def _load_levels(assembly: Assembly, read: Callable[[int], list[dict[str, Any]]]) -> None:
    located = assembly.placement.located(assembly.levels)
    for depth, (level, groups, members) in enumerate(located):
        if not level.remembers:
            continue
        state = _stack([read(first)[depth]["group"] for first in groups])
        memory = [[read(first)[depth]["member"] for first in firsts] for firsts in members]
        level.load({**state, "reducer": _stack([_stack(row) for row in memory])})


def _at(value: Any, index: int) -> Any:
    """One group's, or member's, part of a state: `index` of every tensor with that dimension."""
    if isinstance(value, dict):
        return {key: _at(item, index) for key, item in value.items()}
    return value[index] if isinstance(value, Tensor) and value.dim() else value


def _stack(parts: list[Any]) -> Any:
    """The inverse of `_at`, over all indices."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: _stack([part[key] for part in parts]) for key in first}
    return torch.stack(parts) if isinstance(first, Tensor) else first


def _file(worker: int) -> str:
    return f"worker-{worker:05d}.pt"


def _write(path: Path, state: dict[str, Any]) -> None:
    torch.save(_own_memory(state), path)


def _own_memory(value: Any) -> Any:
    """`value` with every tensor in memory of its own: a view would be saved with all that it is a
    view of.
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _own_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_own_memory(item) for item in value)
    return value


def _read(checkpoint: Path, worker: int, common: dict[str, Any]) -> dict[str, Any]:
    path = checkpoint / _file(worker)
    try:
        if _sha256(path) != common["sha256"][path.name]:
            raise UserError(f"checkpoint file {path} is damaged: its checksum is another one")
        return torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, KeyError) as error:
        raise UserError(f"checkpoint {checkpoint} lacks {path.name}: {error}") from None
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise UserError(f"checkpoint file {path} is damaged: {error}") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
