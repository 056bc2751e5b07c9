"""What the command line offers: the names of parts, with those of other packages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import tyro

from localsgd.cli.options import CompareCommand, RunCommand, SweepCommand
from localsgd.train.config.methods import method_names
from localsgd.train.config.parts import compression_names, options_by_name, outer_names
from localsgd.train.config.run import Run
from localsgd.train.plugins import use

C = TypeVar("C", bound=RunCommand | CompareCommand | SweepCommand)


def used(arguments: Sequence[str]) -> tuple[str, ...]:
    """The modules that `--use` names, which are imported before the rest is read."""
    found = []
    for index, argument in enumerate(arguments):
        if argument == "--use" and index + 1 < len(arguments):
            found.append(arguments[index + 1])
        elif argument.startswith("--use="):
            found.append(argument.partition("=")[2])
    for module in found:
        use(module)
    return tuple(found)


def offering(command: C) -> tuple[type[Any], Any]:
    """A type like the command's, whose options name all there is now; and the command in it."""
    own_fields: list[tuple[str, Any, Any]] = [
        ("compression", _choice(compression_names()), None),
        ("outer", _choice(outer_names()), None),
        ("method", Annotated[str, tyro.conf.arg(help=_methods())], Run().method),
        ("options", Annotated[tuple[str, ...], tyro.conf.arg(help=_help())], ()),
        ("plugins", tyro.conf.Suppress[tuple[str, ...]], ()),
    ]
    namespace = {"__doc__": Run.__doc__}
    kind = msgspec.defstruct(
        "Run", own_fields, bases=(Run,), namespace=namespace, frozen=True, kw_only=True
    )
    own = type(command)
    offered = dataclass(frozen=True)(
        type(
            own.__name__,
            (own,),
            {
                "__doc__": own.__doc__,
                "__annotations__": {"run": Annotated[kind, tyro.conf.arg(name="")]},
            },
        )
    )
    values = {name: getattr(command, name) for name in _names(own)}
    return offered, offered(**{**values, "run": _as(kind, command.run)})


def plain(command: Any, kind: type[C]) -> C:
    """What was read, as the command that it is."""
    values = {name: getattr(command, name) for name in _names(kind)}
    return kind(**{**values, "run": _as(Run, command.run)})


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _methods() -> str:
    return f"How workers synchronise: {', '.join(method_names())}; `localsgd tasks` describes them."


def _help() -> str:
    options = [
        f"{name}.{option}={value}"
        for name, usual in options_by_name().items()
        for option, value in usual.items()
    ]
    there = f"There are, with their usual values: {' '.join(options)}." if options else ""
    return f"Options of parts from other packages, as NAME.OPTION=VALUE. {there}".strip()


def _choice(names: tuple[str, ...]) -> Any:
    return Literal[names] | None  # pyrefly: ignore


def _as(kind: type[Any], run: Run) -> Any:
    return kind(**msgspec.structs.asdict(run))
