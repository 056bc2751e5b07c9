"""The folder of a run. It is always readable, since files are written completely or not at all.

run.json            the configuration, complete
environment.json    code, versions, machine, how the workers were hosted
metrics.jsonl       a line for each evaluation, with the ledger's totals by level
checkpoints/        by worker (see `state`)
summary.json        once the run has ended
`.lock`             empty; held by the process that writes the others
model.safetensors   the averaged model's state dict, then; loads without this library
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from localsgd.basics import strict_json
from localsgd.basics.files import check_no_link, open_anew, open_to_add, read_text
from localsgd.errors import UserError
from localsgd.train.config.parts import going_on
from localsgd.train.config.run import Run, from_json, to_json
from localsgd.train.engine.results import read_rows, summary_of

LOCK = ".lock"
_ADVICE = "put it back, or remove it and go on by `localsgd resume`"


def write_whole(path: Path, content: bytes, *, shared: bool = False) -> None:
    """Writes a file so that it is there with all its content or not at all, after a power cut too.

    Args:
        path: of the file.
        content: all of it.
        shared: whether other processes may write it at the same time; the last one then wins.

    Raises:
        OSError: it cannot be written, as on a full disk; it names the file, and nothing is left.
    """
    own = f".{secrets.token_hex(8)}" if shared else ""
    partial = path.with_name(f"{path.name}{own}.partial")
    try:
        with open_anew(partial) as file:
            file.write(content)
            to_disk(file)
        os.replace(partial, path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from None


def add_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Adds records to a file of JSON lines.

    Raises:
        UserError: it is a link, a pipe or a device.
        OSError: it cannot be written, as on a full disk; it names the file. What there is of a line
            then is left out by who reads it.
    """
    text = "".join(strict_json.dumps(record) + "\n" for record in records)
    try:
        with open_to_add(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def to_disk(file: IO[bytes]) -> None:
    """Returns once what was written is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def check_place(folder: Path, option: str = "--out") -> None:
    """Raises if a folder can't be made or written to, before the work that would go there."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{folder} cannot be written; give another place with {option}")


def check_file(path: Path, option: str = "--out") -> None:
    """Raises if a file can't be written at `path`, before the work that would go there."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; give a file with {option}")
    check_place(path.parent, option)


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Inside, no other process can write a run into this folder; ends with the process at latest.

    Raises:
        UserError: another process does, or the lock is a link, a pipe or a device.
    """
    with open_to_add(path / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{path} is being written by another process; wait until that has ended, or end it"
            ) from None
        except OSError:
            pass  # a file system without locks
        yield


@dataclass(frozen=True)
class Folder:
    """The records of one run."""

    path: Path

    @staticmethod
    def create(path: Path, run: Run, environment: Mapping[str, Any]) -> Folder:
        """Makes a new folder; raises if it exists and is not empty."""
        Folder.check_new(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with locked(path):
                Folder.check_new(path)  # another may have been quicker
                write_whole(path / "run.json", to_json(run))
        except OSError as error:
            raise UserError(
                f"{path} cannot be written: {error.strerror}; give another place with --out"
            ) from None
        write_whole(path / "environment.json", _json(environment))
        return Folder(path)

    @staticmethod
    def check_new(path: Path, option: str = "--out") -> None:
        """Raises if a run's folder can't be made at `path`."""
        if path.exists() and (not path.is_dir() or {*os.listdir(path)} - {LOCK}):
            begun = (path / "run.json").is_file()
            again = f"go on with it by `{going_on(Folder(path).run, path)}`, or " if begun else ""
            raise UserError(f"{path} exists already; {again}give another place with {option}")
        check_place(path, option)

    @staticmethod
    def open(path: Path) -> Folder:
        """Opens the folder of a run that has begun."""
        if not (path / "run.json").is_file():
            raise UserError(_no_run(path))
        return Folder(path)

    @property
    def run(self) -> Run:
        path = self.path / "run.json"
        run = from_json(path)
        if missing := run.missing():
            raise UserError(
                f"{path} is damaged: it lacks {', '.join(missing)}, which every run has; put back "
                "what it was begun with"
            )
        return run

    @property
    def _levels(self) -> int:
        return self.run.parsed_topology().levels

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    def metrics(self) -> list[dict[str, Any]]:
        """The evaluations so far, oldest first; a last line cut short by a crash is left out."""
        path = self.path / "metrics.jsonl"
        return read_rows(path, self._levels) if path.exists() else []

    def append(self, row: Mapping[str, Any]) -> None:
        add_lines(self.path / "metrics.jsonl", [row])

    def forget_after(self, step: int) -> None:
        """Drops evaluations later than `step`: a resumed run makes them again."""
        rows = [strict_json.dumps(row) + "\n" for row in self.metrics() if row["step"] <= step]
        write_whole(self.path / "metrics.jsonl", "".join(rows).encode())

    def summary(self) -> dict[str, Any] | None:
        """The results, or `None` while the run has not ended."""
        path = self.path / "summary.json"
        found = _read(path)
        return None if found is None else summary_of(found, path, self._levels)

    def environment(self) -> dict[str, Any]:
        """The environment in which the run was made; empty if it ended before that was written."""
        return _read(self.path / "environment.json") or {}

    def snapshot(self, number: int, model: torch.nn.Module) -> None:
        """Saves the averaged model at the end of a learning rate's `number`-th cycle."""
        folder = self.path / "snapshots"
        check_no_link(folder)
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"cycle-{number}.safetensors", safetensors_of(model))

    def finish(self, summary: Mapping[str, Any], model: torch.nn.Module) -> None:
        write_whole(self.model, safetensors_of(model))
        write_whole(self.path / "summary.json", _json(summary))


def runs_in(path: Path) -> list[Path]:
    """The folders of runs that lie in a folder, such as that of a sweep."""
    return sorted(each.parent for each in path.glob("*/run.json"))


def _no_run(path: Path) -> str:
    """Why a path is no run's folder, and what to give instead."""
    if not path.exists():
        return f"{path} is not there; give the folder of a run"
    if not path.is_dir():
        return f"{path} is a file; give the folder of a run"
    inside = runs_in(path)
    if inside:
        return f"{path} is no run's folder, but has {len(inside)} in it; give one, as {inside[0]}"
    several = sorted({each.parent.parent for each in path.glob("*/*/run.json")})
    if several:
        named = ", ".join(map(str, several[:3])) + (", ..." if len(several) > 3 else "")
        return f"{path} is no run's folder; runs are in {named}: give one of these"
    return f"{path} is no run's folder: it has no run.json"


def _read(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; `None` if there is no file."""
    if not path.is_file():
        return None
    try:
        found = json.loads(read_text(path))
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {error}; {_ADVICE}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it holds no object; {_ADVICE}")
    return found


def safetensors_of(model: torch.nn.Module) -> bytes:
    """A model's state dict, as a file."""
    from safetensors.torch import save

    # Copies: the format refuses tied weights, which share memory.
    tensors = {name: value.contiguous().cpu().clone() for name, value in model.state_dict().items()}
    return save(tensors, metadata={"format": "pt"})


def _json(value: Mapping[str, Any]) -> bytes:
    return strict_json.dumps(value, indent=2).encode() + b"\n"
