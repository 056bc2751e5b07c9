"""Reads the command line, calls the command, and turns errors into one line and an exit status."""

from __future__ import annotations

import importlib
import io
import itertools
import os
import re
import sys
import traceback
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path

import msgspec
import tyro

from localsgd.basics import starting
from localsgd.basics.printable import printable
from localsgd.cli.fault_tolerant import FLAG, FaultTolerantCommand, split
from localsgd.cli.offered import offering, plain, used
from localsgd.cli.options import (
    Command,
    CompareCommand,
    ExportCommand,
    LandscapeCommand,
    PlanCommand,
    ReportCommand,
    ReproduceCommand,
    ResumeCommand,
    RunCommand,
    ShowCommand,
    SweepCommand,
    TasksCommand,
)
from localsgd.errors import DIVERGED_EXIT, Diverged, PeerLost, UserError, unknown_name
from localsgd.train.config.blame import ALL_OF_IT
from localsgd.train.config.methods import method
from localsgd.train.config.parts import changed_plugins
from localsgd.train.config.run import Run, checked, from_json
from localsgd.train.engine.execution import Interrupted
from localsgd.train.launch import (
    PEER_LOST_EXIT,
    USER_ERROR_EXIT,
    find_world,
    print_exit_message,
)
from localsgd.train.launch.output import lasting

INTERRUPTED_EXIT = 130
CALLED: dict[type, tuple[str, str]] = {
    RunCommand: ("training", "run"),
    ResumeCommand: ("training", "resume"),
    CompareCommand: ("comparing", "compare"),
    SweepCommand: ("sweeping", "sweep"),
    ShowCommand: ("showing", "show"),
    TasksCommand: ("showing", "list_all"),
    ExportCommand: ("exporting", "export"),
    LandscapeCommand: ("measuring", "landscape"),
    PlanCommand: ("planning", "plan"),
    ReproduceCommand: ("reproducing", "reproduce"),
    ReportCommand: ("reporting", "report"),
    FaultTolerantCommand: ("fault_tolerant", "run"),
}
"""The module and the function of each command, imported when it is called: figures are slow."""
TRAINING = (RunCommand, ResumeCommand, CompareCommand, SweepCommand)
"""Commands that say themselves how to go on, once something is written."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    0 for success, 2 for a user's mistake, 3 for a lost process, 4 for a run that has diverged, 130
    for Ctrl-C. An error of the operating system (a file without permission, a full disk) counts as
    a mistake and is reported in one line.
    """
    with _lasting_output():
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(arguments: list[str]) -> int:
    starting.started()
    command = None
    try:
        command = _parse(arguments)
        return _call(command)
    except UserError as error:
        if os.environ.get(ALL_OF_IT):
            traceback.print_exception(error)
        print_exit_message(f"localsgd: {error}")
        return DIVERGED_EXIT if isinstance(error, Diverged) else USER_ERROR_EXIT
    except OSError as error:
        print_exit_message(f"localsgd: {_what_failed(error)}")
        return USER_ERROR_EXIT
    except PeerLost as error:
        print_exit_message(f"localsgd: {error}")
        return PEER_LOST_EXIT
    except Interrupted as stopped:
        starting.ending()
        print_exit_message(f"localsgd: {stopped}")
        return INTERRUPTED_EXIT
    except KeyboardInterrupt:
        starting.ending()
        early = command is None or isinstance(command, TRAINING)
        print_exit_message(f"localsgd: {starting.TOO_EARLY if early else 'interrupted'}")
        return INTERRUPTED_EXIT


@contextmanager
def _lasting_output() -> Generator[None]:
    """Output whose failure does not end a run.

    It fails if its reader leaves (`localsgd run | head -1`), or at a character that the terminal's
    encoding lacks.
    """
    before = sys.stdout
    before.flush()
    sys.stdout = replaced = lasting(before)
    try:
        yield
    finally:
        replaced.flush()
        sys.stdout = before


def _what_failed(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    return reason if error.filename is None else f"{error.filename}: {reason}"


def _parse(arguments: list[str]) -> Command | FaultTolerantCommand:
    """The command; `--config FILE` gives the values that other options override."""
    flag = next((word for word in arguments if word.replace("_", "-") == FLAG), None)
    if arguments[:1] == ["run"] and flag is not None:
        return _fault_tolerant(arguments[1:], flag)
    used(arguments)
    if sum(one == "--config" or one.startswith("--config=") for one in arguments) > 1:
        raise UserError("--config is given twice; name one file")
    config = _value_of("--config", arguments)
    base = from_json(Path(config)) if config else Run()
    for note in changed_plugins(base):
        if find_world().rank == 0:
            print(printable(note))
    commands = {
        "run": RunCommand(run=base),
        "compare": CompareCommand(run=base.opened()),
        "sweep": SweepCommand(run=base.opened()),
    }
    chosen = commands.get(arguments[0]) if arguments else None
    options = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)
    with _mistakes_in_one_line():
        if chosen is None:
            return tyro.cli(Command, args=arguments, prog="localsgd", config=options)  # type: ignore[call-overload]
        offered, default = offering(chosen)
        command = plain(
            tyro.cli(
                offered,
                args=arguments[1:],
                default=default,
                prog=f"localsgd {arguments[0]}",
                config=options,
            ),
            type(chosen),
        )
    run = command.run
    if config and run.method != base.method:
        run = _of_another_method(run, base)
    return replace(command, run=checked(run))


def _fault_tolerant(arguments: list[str], flag: str) -> FaultTolerantCommand:
    arguments.remove(flag)  # The script may have one of its own.
    own, script = split(arguments)
    with _mistakes_in_one_line():
        found = tyro.cli(FaultTolerantCommand, args=own, prog=f"localsgd run {FLAG}")
    return replace(found, script=script)


def _of_another_method(run: Run, base: Run) -> Run:
    """`run` with its own method's preset wherever it only repeats the preset of `base`."""
    opened = base.opened()
    again = [
        name
        for name in Run.__struct_fields__
        if getattr(opened, name) != getattr(base, name) == getattr(run, name)
    ]
    if "lr" in method(run.method).preset and run.lr == base.lr:
        again.append("lr")
    return msgspec.structs.replace(run, **dict.fromkeys(again))


@contextmanager
def _mistakes_in_one_line() -> Generator[None]:
    """Turns a message that tyro prints in a box into a `UserError` of one line.

    The line has its first paragraph, the options it suggests, and how to get help.
    """
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            yield
    except SystemExit as stopped:
        if not stopped.code:
            raise
        raise UserError(_in_one_line(said.getvalue())) from None


def _in_one_line(box: str) -> str:
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    by_break = itertools.groupby(lines, key=lambda line: not line or line.startswith("─"))
    paragraphs = [" ".join(group) for is_break, group in by_break if not is_break]
    if not paragraphs:
        return " ".join(box.split())
    if found := re.match(r"invalid choice '(.*)' for argument '--(\S+)'.*?\((.*)\)", paragraphs[0]):
        given, option, names = found.groups()
        known = sorted({*re.findall(r"'([^']+)'", names)} - {"None"})
        return str(unknown_name(option.replace("-", " "), given, known))
    if found := re.match(r"Error parsing (--\S+): .*(INT|FLOAT).* from \['(.*)'\]", paragraphs[0]):
        option, kind, given = found.groups()
        wanted = {"INT": "a whole number", "FLOAT": "a number"}[kind]
        return f"{option} {given!r} is not understood; give {wanted}"
    nearest = [line.split()[0] for line in lines if line.startswith("--") and "Perhaps" in box]
    said = paragraphs[0].replace("Expected 1 values", "Expected 1 value")
    said = said.rstrip(".") + (f"; nearest: {', '.join(nearest)}" if nearest else "")
    return f"{said}; {paragraphs[-1].removeprefix('For full helptext, ')}"


def _value_of(option: str, arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        if argument == option and index + 1 < len(arguments):
            return arguments[index + 1]
        if argument.startswith(option + "="):
            return argument.partition("=")[2]
    return None


def _call(command: Command | FaultTolerantCommand) -> int:
    module, name = CALLED[type(command)]
    return getattr(importlib.import_module(f"localsgd.cli.{module}"), name)(command)
