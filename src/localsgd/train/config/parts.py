"""The parts of a run that are chosen by name: which there are, and which come from outside."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localsgd.averaging import outer
from localsgd.basics.options import given_to, options_of, split
from localsgd.basics.outside import Outside
from localsgd.errors import UserError
from localsgd.reduce import named
from localsgd.train.config import methods
from localsgd.train.data import models, tasks

if TYPE_CHECKING:
    from localsgd.train.config.run import Run

MEANS = tuple(named.MEANS)
"""Names of reducers that are settings of their own (`reduction`)."""

OUTSIDE: Mapping[str, Outside] = {
    "task": tasks.OUTSIDE,
    "model": models.OUTSIDE,
    "method": methods.OUTSIDE,
    "compression": named.OUTSIDE,
    "outer": outer.OUTSIDE,
}
"""What other packages have, by the setting of a run that names it."""
PYTHON = "an object in Python"
"""Where a part comes from that was given as an object."""
PROGRAM = "this program"
"""Where a part comes from that a program has given a name."""
MADE = ("model", "method", "compression", "outer")
"""The settings whose parts are made with options."""


def compression_names() -> tuple[str, ...]:
    """The names for `compression`."""
    own = tuple(name for name in named.REDUCERS if name not in MEANS)
    return (*own, *named.OUTSIDE.names())


def outer_names() -> tuple[str, ...]:
    """The names for `outer`."""
    return (*outer.OUTERS, *outer.OUTSIDE.names())


def from_outside(run: Run) -> Iterator[tuple[str, str]]:
    """The settings of a run whose parts come from outside, with their names."""
    for setting, others in OUTSIDE.items():
        name = getattr(run, setting)
        if name is not None and others.origin(name) is not None:
            yield setting, name


def plugins_of(run: Run) -> tuple[str, ...]:
    """The run's parts from outside with their packages and versions, as a run records them."""
    return tuple(
        f"{setting} {name}: {OUTSIDE[setting].origin(name)}" for setting, name in from_outside(run)
    )


def used_by_method(run: Run) -> tuple[str, ...] | None:
    """The settings that the method of a recorded run reads; None if its package isn't here."""
    there = run.method in methods.METHODS or run.method in methods.OUTSIDE
    if not there and any(text.startswith(f"method {run.method}: ") for text in run.plugins):
        return None
    return methods.method(run.method).uses


def options_by_name() -> dict[str, Mapping[str, Any]]:
    """The options of all parts from outside that have some, with their usual values."""
    found: dict[str, Mapping[str, Any]] = {}
    for setting in MADE:
        for name in OUTSIDE[setting].names():
            part = OUTSIDE[setting][name]
            found[name] = options_of(part) if _is_made(setting, part) else {}
    return {name: options for name, options in found.items() if options}


def check_parts(run: Run) -> None:
    """Raises for a compression or an outer optimizer that is not there, and for options that no
    part of the run reads.
    """
    if run.compression not in compression_names():
        raise named.OUTSIDE.unknown(str(run.compression), "compression", compression_names())
    if run.outer not in outer_names():
        raise outer.OUTSIDE.unknown(str(run.outer))
    used = {name: setting for setting, name in from_outside(run)}
    for text in run.options:
        name, _, _ = split(text)
        if name not in used:
            mine = f"those of {', '.join(used)}" if used else "none"
            raise UserError(
                f"option {text!r} is of no part of this run from another package; there are {mine}"
            )
    for name, setting in used.items():
        part = OUTSIDE[setting][name]
        if _is_made(setting, part):
            given_to(name, part, run.options)
        elif any(split(text)[0] == name for text in run.options):
            raise UserError(f"{setting} {name} has no options; leave them out")


def _is_made(setting: str, part: Any) -> bool:
    """Whether a part is a class or function that is called with options.

    A function in the place of a method is a schedule.
    """
    return setting in MADE and (inspect.isclass(part) or setting != "method")


def going_on(run: Run, path: Path, command: str = "resume") -> str:
    """What goes on with the run in `path`: a command, whole, or the program that began it.

    A module that this process was not told of is written MODULE, whatever the folder records.
    """
    modules: dict[str, None] = {}
    for text in run.plugins:
        place, _, recorded = text.partition(": ")
        setting, _, name = place.partition(" ")
        now = OUTSIDE[setting].origin(name) if setting in OUTSIDE else None
        if _of_program(recorded) or (now is not None and now.source == PROGRAM):
            return "the program that began it"
        if now is None:
            modules["MODULE"] = None
        elif OUTSIDE[setting].added(name):
            modules[now.source] = None
    return command_line(["localsgd", command, str(path)], modules)


def _of_program(recorded: str) -> bool:
    """Whether a part was given in Python: as an object, or with a name of the program's own."""
    return recorded == PYTHON or f"{recorded} ".startswith(f"{PROGRAM} ")


def command_line(words: Iterable[str], modules: Iterable[str]) -> str:
    """A command with `--use` for modules, as it works in this folder.

    PYTHONPATH stands in front where modules are found by it, since it may have been set for one
    command alone; and where they lie in the current folder, which `python -m localsgd` looks into.
    """
    modules = list(modules)
    used = [word for module in modules for word in ("--use", module)]
    named = [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
    folders = [_folder(module) for module in modules]
    found = [place for place in (*named, ".") if Path(place).resolve() in folders]
    path = os.pathsep.join(dict.fromkeys([*named, *found]))
    prefix = f"PYTHONPATH={shlex.quote(path)} " if found else ""
    return prefix + shlex.join([*words, *used])


def _folder(module: str) -> Path | None:
    """The folder in which Python has found a module, or its package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    return path.parents[module.count(".") + (path.name == "__init__.py")]


def changed_plugins(run: Run) -> list[str]:
    """What to say of the parts that a recorded run has from other packages, if anything.

    Raises:
        UserError: one is not there.
    """
    found = []
    for text in run.plugins:
        if not text.isprintable() or ": " not in text:
            raise UserError(f"plugins of the run are damaged: {text!r}; put back what it had")
        place, _, recorded = text.partition(": ")
        setting, _, name = place.partition(" ")
        now = OUTSIDE[setting].origin(name) if setting in OUTSIDE else None
        if recorded == PYTHON or (_of_program(recorded) and now is None):
            was = PYTHON if recorded == PYTHON else "named by a program in Python"
            raise UserError(
                f"{setting} {name} was {was}; go on from there, by the same Run(...).train(out=...)"
            )
        if setting not in OUTSIDE or getattr(run, setting) != name:
            continue
        if now is None:
            raise UserError(
                f"{setting} {name} was that of {recorded}, which is not here; install it, or give "
                "the module that has it with --use"
            )
        if str(now) != recorded:
            found.append(f"{setting} {name}: {recorded} before, {now} now; results may differ")
    return found
