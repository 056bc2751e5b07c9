"""Parts of other packages: modules that a user names, and what they have.

A module that is named with `--use`, or with `use`, says what it has in `LOCALSGD`:

    LOCALSGD = {
        "tasks": {"haiku": ENTRY},
        "models": {"tiny-gpt": tiny_gpt},
        "schedules": {"square-root": SquareRoot},
        "compressors": {"two-bit": TwoBit},
        "outers": {"lion": lion},
    }

An installed package says the same by entry points (`localsgd.basics.outside`), and need not be
named. A run's folder records names and versions, and never chooses what is imported.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

from localsgd.basics.outside import Origin, Outside
from localsgd.errors import UserError, unknown_name
from localsgd.train.config.blame import place_of
from localsgd.train.config.parts import OUTSIDE, PROGRAM

KINDS: Mapping[str, Outside] = {
    others.group.removeprefix("localsgd."): others for others in OUTSIDE.values()
}
"""Tasks, models, schedules, compressors and outers of other packages."""


def use(module: str) -> None:
    """Imports a module, whose parts can then be chosen by their names.

    Args:
        module: its name, as in an import. It is looked for where Python looks; for the command line
            that is not the current folder, unless PYTHONPATH names it.

    Raises:
        UserError: it is not there, fails, or has no `LOCALSGD` that is understood.
    """
    if module.endswith(".py"):
        raise UserError(f"--use {module!r} names a file; write the module: {module[:-3]}")
    if not all(part.isidentifier() for part in module.split(".")):
        raise UserError(f"--use {module!r} is no module; give a name such as my_package.my_module")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever a module of someone else raises
        raise UserError(_why_not(module, error)) from error
    parts = getattr(found, "LOCALSGD", None)
    if not isinstance(parts, Mapping):
        raise UserError(
            f"the module {module} has no LOCALSGD; give it a dictionary such as "
            '{"compressors": {"my-name": MyCompressor}}'
        )
    origin = Origin(module, _version(found))
    for kind, named in parts.items():
        if kind not in KINDS:
            raise unknown_name(f"kind of part in LOCALSGD of {module}", str(kind), KINDS)
        if not isinstance(named, Mapping):
            raise UserError(f"LOCALSGD of {module} has no names for its {kind}; give a dictionary")
        for name, part in named.items():
            _add(kind, name, part, origin)


def add(kind: str, name: str, part: Any) -> None:
    """Gives a part of one's own a name, in this process.

    Args:
        kind: tasks, models, schedules, compressors or outers.
        name: that a run uses.
        part: as in a module's `LOCALSGD`.
    """
    if kind not in KINDS:
        raise unknown_name("kind of part", kind, KINDS)
    module = sys.modules.get(getattr(part, "__module__", ""))
    _add(kind, name, part, Origin(PROGRAM, _version(module) if module else ""))


def _add(kind: str, name: Any, part: Any, origin: Origin) -> None:
    if not isinstance(name, str) or not name or not set(name) <= _ALLOWED:
        raise UserError(
            f"{origin} has {name!r} among its {kind}, which is no name; use letters, digits, - "
            "and _"
        )
    KINDS[kind].add(name, part, origin)


_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def _why_not(module: str, error: Exception) -> str:
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and (module == error.name or module.startswith(error.name + "."))
    ):
        return (
            f"the module {module} is not found; install its package, or name its folder in "
            "PYTHONPATH"
        )
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    place = place_of(error)
    where = f" at {place}" if place else ""
    return f"the module {module} can't be imported ({reason}){where}; mend it"


def _version(module: ModuleType) -> str:
    """The version of the module's package, if it says one."""
    top = module.__name__.partition(".")[0]
    for place in (module, sys.modules.get(top)):
        said = getattr(place, "__version__", None)
        if isinstance(said, str):
            return said
    for name in metadata.packages_distributions().get(top, ()):
        return metadata.version(name)
    return ""
