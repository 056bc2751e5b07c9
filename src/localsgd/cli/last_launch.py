"""How a run was last launched: kept in its folder, so that `resume` needs no options."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import msgspec

from localsgd.basics.typed_json import read_json
from localsgd.basics.units import plural
from localsgd.cli.options import Hosting, ResumeHosting
from localsgd.errors import UserError
from localsgd.logs.choice import services_of
from localsgd.train.engine.run_folder import Folder, write_whole
from localsgd.train.launch import World, find_world, is_launched
from localsgd.train.launch.join import cores

NAME = "hosting.json"
MOST_PER_CORE = 4
"""Largest number of processes per core that `resume` takes from a folder unasked."""


class LastLaunch(msgspec.Struct, frozen=True):
    """The settings of `Hosting` that `resume` takes over if they are not given.

    Args:
        processes: the number that a command started on its machine; `None` for a single process,
            and for those of torchrun or srun, which will start them again.
        data_dir: absolute; `None` if the usual folders were searched.
        log: only loggers that write into the folder are taken over. The folder may be someone
            else's, and a service would get its numbers in this user's name.
    """

    processes: int | None = None
    data_dir: str | None = None
    checkpoint_every: int = Hosting.checkpoint_every
    heartbeat_seconds: float = Hosting.heartbeat_seconds
    timeout_minutes: float = Hosting.timeout_minutes
    log: str = Hosting.log


def keep(path: Path, hosting: Hosting, world: World) -> None:
    """Writes how the run in the folder `path` is launched."""
    kept = LastLaunch(
        processes=world.size if is_launched() else None,
        data_dir=None if hosting.data_place is None else str(hosting.data_place),
        checkpoint_every=hosting.checkpoint_every,
        heartbeat_seconds=hosting.heartbeat_seconds,
        timeout_minutes=hosting.timeout_minutes,
        log=hosting.log,
    )
    write_whole(path / NAME, msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def as_before(path: Path, given: ResumeHosting) -> Hosting:
    """The given settings, completed by those that the run in the folder `path` had last."""
    kept = _read(path / NAME)
    unasked = given.processes is None and find_world().size == 1 and not is_launched()
    if unasked:
        _check_number(kept.processes or 1, path / NAME)
    before = Hosting(
        processes=kept.processes if find_world().size == 1 else None,
        data_dir=None if kept.data_dir is None else Path(kept.data_dir),
        checkpoint_every=kept.checkpoint_every,
        heartbeat_seconds=kept.heartbeat_seconds,
        timeout_minutes=kept.timeout_minutes,
        log=",".join(name for name in kept.log.split(",") if not services_of(name)),
    )
    said = {field.name: getattr(given, field.name) for field in fields(given)}
    return replace(before, **{name: value for name, value in said.items() if value is not None})


def not_told(path: Path, given: ResumeHosting) -> str:
    """A line on the services that the run in the folder `path` was logged to, and is not now."""
    log = _read(path / NAME).log
    services = services_of(log)
    if given.log is not None or not services:
        return ""
    return f"Not logged to {' and '.join(services)} as before, unless you say --log {log}"


def processes_of(folder: Folder) -> int:
    """The number of processes that the run began with; 1 if it ended before that was written."""
    found = folder.environment().get("processes", 1)
    if type(found) is not int or found < 1:
        raise UserError(
            f"{folder.path / 'environment.json'} is damaged: processes is {found!r}; give a number "
            "by --processes"
        )
    _check_number(found, folder.path / "environment.json")
    return found


def _check_number(processes: int, path: Path) -> None:
    """Raises if a file, which may be a stranger's, asks for many more processes than cores."""
    if processes > MOST_PER_CORE * cores():
        raise UserError(
            f"{path} asks for {processes} processes, and this machine has "
            f"{plural(cores(), 'core')}; give --processes {processes} if you want that"
        )


def _read(path: Path) -> LastLaunch:
    """The settings in the file; the defaults if the run ended before they were written."""
    if not path.is_file():
        return LastLaunch()
    return read_json(path, LastLaunch, "delete it, and give --processes and --data-dir again")
