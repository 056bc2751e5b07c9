"""Checkpoints: one file per worker, complete or absent, resumed to the same bits at any step.

A checkpoint is a folder `step-00000123` with one file for each worker and one for what all share. A
worker's file has its rows and its inner optimizer's state; the anchors of the groups whose first
worker it is; and the reducers' memory of the members whose first worker it is. So another split of
the same K workers over processes can go on, with the same bits if sums are ordered. All processes
must see the same folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from localsgd.averaging.delay import Fragmented
from localsgd.averaging.gossip import Gossip
from localsgd.averaging.level import Level
from localsgd.basics import strict_json
from localsgd.basics.files import as_saved, check_no_link, check_regular, open_anew, read_text
from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.rows.layout import Slot
from localsgd.schedule.rounds import Position
from localsgd.train.config.run import Run
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.hosted import Workers
from localsgd.train.engine.results import Amount, Count, Traffic
from localsgd.train.engine.run_folder import to_disk, write_whole

KEPT = 2
"""Number of checkpoints that are kept: the newest, and the one before it."""

_NAME = re.compile(r"step-[0-9]{8,18}")
ADVICE = "remove this checkpoint to go on from the one before it, or from the start"


class _Position(msgspec.Struct):
    lengths: list[Count]
    left: list[Count]
    lockstep: Count
    depth: Count
    memories: list[dict[str, float | bool | None]]


class _Decay(msgspec.Struct):
    highest: float
    last: float
    small_falls: Count
    decayed: bool


class _Signals(msgspec.Struct):
    known: dict[str, float | list[float | None] | None] | None
    coming: list[list[float | None]] | None
    decay: _Decay
    decayed: bool = False


class _Common(msgspec.Struct):
    """What `load` takes of the common part."""

    step: Count
    position: _Position
    syncs: list[Count]
    model_syncs: Count
    signals: _Signals
    seconds: Amount
    ledger: list[Traffic]
    extra: dict[str, Any]
    inner_state_keys: list[str] = []

    def check(self, step: int, levels: int) -> None:
        """Raises `ValueError` if it is not of that step, or not of so many levels."""
        if self.step != step:
            raise ValueError(f"it is named for step {step}, and is of step {self.step}")
        at = self.position
        if not len(at.lengths) == len(at.left) == len(at.memories) == levels:
            raise ValueError(f"its position is not one of {plural(levels, 'level')}")
        within = all(left <= length for left, length in zip(at.left, at.lengths, strict=True))
        if not within or max(at.lockstep, at.depth) > levels:
            raise ValueError("its position is in no round")


def checkpoints(folder: Path) -> list[Path]:
    """The complete checkpoints in `folder`, oldest first."""
    found = (p for p in folder.glob("step-*") if p.is_dir() and _NAME.fullmatch(p.name))
    return sorted(found, key=step_of)


def check_no_links(folder: Path) -> None:
    """Raises before anything is written or removed, if the folder or a checkpoint is a link."""
    for path in (folder, *checkpoints(folder)):
        check_no_link(path)


def step_of(checkpoint: Path) -> int:
    """The step that a checkpoint is of, by its name."""
    return int(checkpoint.name.removeprefix("step-"))


def save(
    assembly: Assembly, folder: Path, barrier: Callable[[], None], extra: dict[str, Any]
) -> None:
    """Writes a checkpoint of the current step. Every process must call it.

    Args:
        assembly: what trains.
        folder: of the run's checkpoints.
        barrier: returns once all processes have called it.
        extra: small values, equal on all processes, that `load` gives back.
    """
    check_no_links(folder)
    leads = assembly.placement.rank == 0
    final = folder / f"step-{assembly.workers.step:08d}"
    partial = final.with_suffix(".partial")
    with _whole_or_nothing(partial):
        if leads:
            for left in (*folder.glob("step-*.partial"), *folder.glob("step-*.discarded")):
                _remove(left)
            partial.mkdir(parents=True)
        barrier()
        for row, worker in enumerate(assembly.workers.ids):
            _write(partial / _file(worker), _worker_state(assembly, row, worker))
        barrier()
        if leads:
            common = _common_state(assembly, partial, extra)
            write_whole(partial / "common.json", strict_json.dumps(_sealed(common)).encode())
            _discard(final)
            os.replace(partial, final)
            for old in checkpoints(folder)[:-KEPT]:
                _discard(old)
    barrier()


def load(assembly: Assembly, checkpoint: Path) -> dict[str, Any]:
    """Loads a checkpoint into a newly assembled run of the same configuration; returns `extra`.

    Raises:
        UserError: it is of another run or damaged.
    """
    common = _unsealed(checkpoint)
    if common.get("run") != _fingerprint(assembly.run):
        raise UserError(
            f"checkpoint {checkpoint} belongs to another run, or this run's run.json was changed; "
            "put back what it was saved with"
        )
    with as_saved(checkpoint, ADVICE):
        msgspec.convert(common, _Common).check(step_of(checkpoint), len(assembly.levels))
        for row, worker in enumerate(assembly.workers.ids):
            state = _read(checkpoint, worker, common)["worker"]
            assembly.workers.load(row, state)
            assembly.observations.load(row, state["told"])
        _load_levels(assembly, lambda worker: _read(checkpoint, worker, common)["levels"])
        assembly.workers.step = common["step"]
        vars(assembly.position).update(vars(Position(**common["position"])))
        for level, count in zip(assembly.levels, common["syncs"], strict=True):
            level.syncs = count
        assembly.ledger.load(common["ledger"])
        assembly.inner_states.syncs = common["model_syncs"]
        assembly.inner_states.load(common.get("inner_state_keys", ()))
        assembly.signals.load(common["signals"])
        assembly.observations.seconds = common["seconds"]
        return common["extra"]


def worker_weights(checkpoint: Path, worker: int, whole: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict of a worker's own model, on the CPU.

    Args:
        checkpoint: at the end of the run.
        worker: of all K.
        whole: the averaged model's state dict, which has the names, and what is not trained.

    Raises:
        UserError: an older version has saved it, which wrote no names; or it is damaged.
    """
    common = _unsealed(checkpoint)
    if "layouts" not in common:
        raise UserError(f"{checkpoint} is of an older version and has no names of tensors")
    with as_saved(checkpoint, ADVICE):
        state = _read(checkpoint, worker, common)["worker"]
        rows = [state["params"], *state["buffers"]]
        found = {
            name: _shaped_like(
                whole[name], Slot(name, tuple(shape), tuple(stride), offset).view(row)
            )
            for slots, row in zip(common["layouts"], rows, strict=True)
            for name, shape, stride, offset in slots
            if name in whole  # some buffers are of no state dict
        }
        found |= {name: found[first] for name, first in common["tied"].items() if first in found}
    return {name: found.get(name, value) for name, value in whole.items()}


def _shaped_like(like: Tensor, value: Tensor) -> Tensor:
    """A copy of `value`, which must have the shape of `like`."""
    if value.shape != like.shape:
        raise ValueError(f"a tensor of {tuple(value.shape)} stands for one of {tuple(like.shape)}")
    return value.clone()


def _layouts(workers: Workers) -> dict[str, Any]:
    """Where a worker's rows have which tensor, and other names of tied ones."""
    layouts = [workers.layout, *(layout for layout, _ in workers.buffers)]
    named = list(workers.models[0].named_parameters(remove_duplicate=False))
    first: dict[int, str] = {}
    for name, tensor in named:
        first.setdefault(id(tensor), name)
    return {
        "layouts": [
            [[slot.name, slot.shape, slot.stride, slot.offset] for slot in layout.slots]
            for layout in layouts
        ],
        "tied": {name: first[id(one)] for name, one in named if first[id(one)] != name},
    }


def read_common(checkpoint: Path) -> dict[str, Any]:
    """The part of a checkpoint that all workers share."""
    path = checkpoint / "common.json"
    try:
        common = json.loads(read_text(path))
        if not isinstance(common, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"checkpoint file {path} is damaged: {error}; {ADVICE}") from None
    return common


@contextmanager
def _whole_or_nothing(partial: Path) -> Generator[None]:
    """Removes an incomplete checkpoint if it can't be written, as on a full disk."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise UserError(
            f"{error.filename or partial} cannot be written: {error.strerror}; is the disk full? "
            "`localsgd resume` goes on from the checkpoint before, once there is room"
        ) from None


def _common_state(assembly: Assembly, partial: Path, extra: dict[str, Any]) -> dict[str, Any]:
    """The common part of a checkpoint, made after the workers' files."""
    return {
        "run": _fingerprint(assembly.run),
        "step": assembly.workers.step,
        "position": asdict(assembly.position),
        "syncs": assembly.syncs,
        "model_syncs": assembly.inner_states.syncs,
        "inner_state_keys": assembly.inner_states.state(),
        "signals": assembly.signals.state(),
        "seconds": assembly.observations.seconds,
        "ledger": assembly.ledger.state(),
        **_layouts(assembly.workers),
        "sha256": {path.name: _sha256(path) for path in sorted(partial.iterdir())},
        "extra": extra,
    }


def _worker_state(assembly: Assembly, row: int, worker: int) -> dict[str, Any]:
    levels: list[dict[str, Any]] = [{} for _ in assembly.levels]
    for depth, level, groups, members in _located(assembly):
        state = level.state()
        memory = state.pop("reducer")
        for group, first in enumerate(groups):
            if first == worker:
                levels[depth]["group"] = _part(state, group, 0)
            if worker in members[group]:
                member = members[group].index(worker)
                levels[depth]["member"] = _part(_part(memory, group, 0), member, 1)
    own = {**assembly.workers.state(row), "told": assembly.observations.state(row)}
    return {"worker": own, "levels": levels}


def _load_levels(assembly: Assembly, read: Callable[[int], list[dict[str, Any]]]) -> None:
    for depth, level, groups, members in _located(assembly):
        if not level.remembers:
            continue
        state = _joined([read(first)[depth]["group"] for first in groups], 0)
        memory = [
            _joined([read(first)[depth]["member"] for first in firsts], 1) for firsts in members
        ]
        level.load({**state, "reducer": _joined(memory, 0)})


def _located(
    assembly: Assembly,
) -> Iterator[tuple[int, Level | Fragmented | Gossip, list[int], list[list[int]]]]:
    """`Placement.located` with the depth of each level: 0 for all unequal blocks hosted here."""
    located = list(assembly.placement.located(assembly.levels))
    blocks_more = len(located) - len(assembly.levels)
    for index, (level, groups, members) in enumerate(located):
        yield max(0, index - blocks_more), level, groups, members


def _part(value: Any, index: int, axis: int) -> Any:
    """The part of a state that belongs to one group (axis 0) or member (axis 1).

    That is `index` of every tensor with that axis, kept as an axis of length 1; all else is shared.
    """
    if isinstance(value, dict):
        return {key: _part(item, index, axis) for key, item in value.items()}
    has_axis = isinstance(value, Tensor) and value.dim() > axis
    return value.narrow(axis, index, 1) if has_axis else value


def _joined(parts: list[Any], axis: int) -> Any:
    """The inverse of `_part`, over all indices."""
    first = parts[0]
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts], axis) for key in first}
    has_axis = isinstance(first, Tensor) and first.dim() > axis
    return torch.cat(parts, axis) if has_axis else first


def _sealed(common: dict[str, Any]) -> dict[str, Any]:
    """`common` with its checksum."""
    return {**common, "checksum": hashlib.sha256(strict_json.dumps(common).encode()).hexdigest()}


def _unsealed(checkpoint: Path) -> dict[str, Any]:
    """`read_common`, checked."""
    sealed = read_common(checkpoint)
    common = {key: value for key, value in sealed.items() if key != "checksum"}
    if sealed != _sealed(common):
        raise UserError(
            f"checkpoint file {checkpoint / 'common.json'} is damaged: its checksum is another "
            f"one; {ADVICE}"
        )
    return common


def _fingerprint(run: Run) -> str:
    """A fingerprint of a run, unchanged by settings that were added to the program later."""
    usual = Run()
    chosen = {
        key: value
        for key, value in msgspec.structs.asdict(run).items()
        if value != getattr(usual, key)
    }
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()


def _discard(path: Path) -> None:
    """Removes a checkpoint so that an interruption leaves nothing that looks like one."""
    if path.exists():
        gone = path.with_suffix(".discarded")
        _remove(gone)
        os.replace(path, gone)
        _remove(gone)


def _remove(path: Path) -> None:
    """Removes what is left of a checkpoint, as far as it can be; of a link the link alone."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _file(worker: int) -> str:
    return f"worker-{worker:05d}.pt"


def _write(path: Path, state: dict[str, Any]) -> None:
    with open_anew(path) as file:
        try:
            torch.save(_own_memory(state), file)
        except RuntimeError:  # what torch makes of a write that fails
            raise OSError(errno.EIO, "it was not written in full", str(path)) from None
        to_disk(file)


def _own_memory(value: Any) -> Any:
    """A copy of `value` without views, which would be saved with all the memory behind them."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _own_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_own_memory(item) for item in value)
    return value


def _read(checkpoint: Path, worker: int, common: dict[str, Any]) -> dict[str, Any]:
    path = checkpoint / _file(worker)
    check_regular(path)
    try:
        whole = _sha256(path) == common["sha256"][path.name]
    except (OSError, LookupError, TypeError) as error:
        raise UserError(f"checkpoint {checkpoint} lacks {path.name}: {error}; {ADVICE}") from None
    if not whole:
        raise UserError(f"checkpoint file {path} is damaged: its checksum is another one; {ADVICE}")
    with as_saved(path, ADVICE):
        return torch.load(path, weights_only=True, map_location="cpu")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
