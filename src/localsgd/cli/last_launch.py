"""How a run was last carried out, in its folder, so that nobody need say it again to go on."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import msgspec

from localsgd.basics.units import plural
from localsgd.cli.options import Hosting, ResumeHosting
from localsgd.errors import UserError
from localsgd.train.engine.run_folder import Folder, write_whole
from localsgd.train.launch import World, find_world, is_launched
from localsgd.train.launch.join import cores

NAME = "hosting.json"
MOST_PER_CORE = 4
"""Processes that a folder may have started without being asked again."""


class LastLaunch(msgspec.Struct, frozen=True):
    """The settings of a `Hosting` that the next one takes where nothing is said.

    Args:
        processes: that a command started on its machine; `None` for one alone, and for those of
            torchrun or srun, which are started anew by the same.
        data_dir: absolute; `None` where the usual places were searched.
    """

    processes: int | None = None
    data_dir: str | None = None
    checkpoint_every: int = Hosting.checkpoint_every
    heartbeat_seconds: float = Hosting.heartbeat_seconds
    timeout_minutes: float = Hosting.timeout_minutes


def keep(path: Path, hosting: Hosting, world: World) -> None:
    """Writes how this process and the others carry out the run in the folder `path`."""
    kept = LastLaunch(
        processes=world.size if is_launched() else None,
        data_dir=None if hosting.data_place is None else str(hosting.data_place),
        checkpoint_every=hosting.checkpoint_every,
        heartbeat_seconds=hosting.heartbeat_seconds,
        timeout_minutes=hosting.timeout_minutes,
    )
    write_whole(path / NAME, msgspec.json.format(msgspec.json.encode(kept)) + b"\n")


def as_before(path: Path, given: ResumeHosting) -> Hosting:
    """What is given, and where nothing is, what the run in the folder `path` had last."""
    kept = _read(path / NAME)
    if given.processes is None and (kept.processes or 1) > MOST_PER_CORE * cores():
        raise UserError(
            f"{path / NAME} asks for {kept.processes} processes, and this machine has "
            f"{plural(cores(), 'core')}; say --processes {kept.processes} if you mean it"
        )
    before = Hosting(
        processes=kept.processes if find_world().size == 1 else None,
        data_dir=None if kept.data_dir is None else Path(kept.data_dir),
        checkpoint_every=kept.checkpoint_every,
        heartbeat_seconds=kept.heartbeat_seconds,
        timeout_minutes=kept.timeout_minutes,
    )
    said = {field.name: getattr(given, field.name) for field in fields(given)}
    return replace(before, **{name: value for name, value in said.items() if value is not None})


def processes_of(folder: Folder) -> int:
    """As many as the run began with; one where it ended before it said so."""
    found = folder.environment().get("processes", 1)
    if type(found) is not int or found < 1:
        raise UserError(
            f"{folder.path / 'environment.json'} is damaged: processes is {found!r}; give a number "
            "by --processes"
        )
    return found


def _read(path: Path) -> LastLaunch:
    """Nothing but usual settings where the run ended before they were written."""
    if not path.is_file():
        return LastLaunch()
    try:
        return msgspec.json.decode(path.read_bytes(), type=LastLaunch)
    except msgspec.MsgspecError as error:
        raise UserError(
            f"{path} is damaged: {error}; delete it, and say --processes and --data-dir again"
        ) from None
