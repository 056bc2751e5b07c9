"""Says which part from outside the package has failed, and where in its code."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from localsgd.errors import PeerLost, UserError, short
from localsgd.train.config.parts import OUTSIDE, PYTHON
from localsgd.train.config.run import Run

HERE = f"{Path(__file__).parents[2]}/"
TORCH = f"{Path(torch.__file__).parent}/"
STANDARD = f"{sysconfig.get_paths()['stdlib']}/"
MODULES = f"{TORCH}nn/modules/module.py"
ROOMS = {
    "train/data/models/": "model",
    "train/engine/observer.py": "",
    "train/engine/assembly.py": "no_decay",
    "train/config/": "method",
    "show/": "method",
    "schedule/": "method",
    "reduce/": "compression",
    "averaging/": "outer",
    "train/data/": "task",
    **{f"train/engine/{name}.py": "task" for name in ("losses", "batched", "evaluation", "hosted")},
}
"""By where this package has called a part: the setting that names it."""
JUDGES = ("train/engine/losses.py", "train/data/task.py")
"""Where a task's loss is called, by functions that have a `model`, its `output` and a `target`."""
ALL_OF_IT = "LOCALSGD_TRACEBACK"
"""Variable that has the whole traceback printed."""


class PartFailed(UserError):
    """A part from outside the package has raised an error, which is this one's cause."""


class Frame(NamedTuple):
    file: str
    line: int

    @property
    def is_users(self) -> bool:
        """Whether it is neither of this package nor of torch or Python."""
        installed = "site-packages" in self.file or "dist-packages" in self.file
        standard = self.file.startswith((STANDARD, "<frozen")) and not installed
        return not self.file.startswith((HERE, TORCH)) and not standard


class Judged(NamedTuple):
    model: Any
    output: Any
    target: Any


@contextmanager
def naming_parts(run: Run) -> Generator[None]:
    """Inside, an error in a part that the run has from outside becomes a line that names it."""
    try:
        yield
    except (UserError, PeerLost):
        raise
    except Exception as error:  # whatever the code of someone else raises
        said = _said(run, error)
        if said is None:
            raise
        raise PartFailed(said) from error


def _said(run: Run, error: Exception) -> str | None:
    """The line; None if no part from outside was at work."""
    sources = _sources(run)
    if not sources:
        return None
    found = list(traceback.walk_tb(error.__traceback__))
    frames = [Frame(frame.f_code.co_filename, line) for frame, line in found]
    users = [index for index, frame in enumerate(frames) if frame.is_users]
    if isinstance(error, OSError) and not users:
        return None
    entered = frames[: users[0]] if users else frames
    last = frames[users[-1]] if users else None
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    setting = _setting(entered)
    judged = _judged([frame.f_locals for frame, _ in found if _judges(frame.f_code.co_filename)])
    if setting == "task" and judged is not None and {"model", "task"} & {*sources}:
        what, last = _misfit(run, sources, judged, last)
        reason = f"output {_shape(judged.output)} for target {_shape(judged.target)}: {reason}"
    else:
        what = _what(run, sources, setting)
    if what is None:
        return None
    place = f" at {_place(last)}" if last else ""
    return f"{what} failed{place}: {reason} ({ALL_OF_IT}=1 shows all of it)"


def _judges(file: str) -> bool:
    return file.removeprefix(HERE) in JUDGES


def _judged(variables: Sequence[Mapping[str, Any]]) -> Judged | None:
    """What the loss was given, from the variables of the functions in which it is called."""
    for own in reversed(variables):
        if {*Judged._fields} <= {*own}:
            return Judged(*(own[name] for name in Judged._fields))
    return None


def _misfit(
    run: Run, sources: Mapping[str, str], judged: Judged, last: Frame | None
) -> tuple[str, Frame | None]:
    """The model and the task in words, and the place in one of them.

    A loss that fails in code of the user's is the task's; else the model's output is wrong.
    """
    model, task = (
        _named(run, setting, sources[setting]).rstrip(",")
        if setting in sources
        else f"the {setting} {getattr(run, setting)}"
        for setting in ("model", "task")
    )
    place = _place_of_model(run, sources, judged.model)
    if last is None and "model" in sources:
        return f"{model}, with {task},", place
    return f"{task}, with {model}" + (f" ({_place(place)})," if place else ","), last


def _place_of_model(run: Run, sources: Mapping[str, str], model: Any) -> Frame | None:
    """Of its `forward`, or of the function that makes it, if that is a user's."""
    forward = getattr(type(model), "forward", None)
    make = None
    if "model" in sources and sources["model"] != PYTHON:
        make = OUTSIDE["model"][str(run.model)]
    for function in (forward, make):
        code = getattr(function, "__code__", None)
        if code is not None and Frame(code.co_filename, code.co_firstlineno).is_users:
            return Frame(code.co_filename, code.co_firstlineno)
    return None


def _shape(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else short(value)


def place_of(error: Exception) -> str:
    """The last place in a user's code that an error has passed; empty if there is none."""
    found = traceback.walk_tb(error.__traceback__)
    frames = [Frame(frame.f_code.co_filename, line) for frame, line in found]
    users = [frame for frame in frames if frame.is_users]
    return _place(users[-1]) if users else ""


def _sources(run: Run) -> dict[str, str]:
    """By setting, the package or module that a part comes from."""
    found = {}
    for text in run.plugins:
        place, _, source = text.partition(": ")
        found[place.partition(" ")[0]] = source
    return found


def _setting(entered: Sequence[Frame]) -> str:
    """The setting whose part was called by the last frame of this package."""
    mine = [index for index, frame in enumerate(entered) if frame.file.startswith(HERE)]
    last = mine[-1] if mine else 0
    if any(frame.file == MODULES for frame in entered[last:]):
        return "model"
    name = entered[last].file.removeprefix(HERE) if entered else ""
    return next((setting for room, setting in ROOMS.items() if name.startswith(room)), "")


def _what(run: Run, sources: Mapping[str, str], setting: str) -> str | None:
    """The part in words. A model and a task can each be wrong for the other."""
    if setting in ("model", "task"):
        other = {"model": "task", "task": "model"}[setting]
        if setting in sources:
            return _named(run, setting, sources[setting])
        if other in sources:
            return f"{_named(run, other, sources[other])}, with {setting} {getattr(run, setting)},"
        return None
    return _named(run, setting, sources[setting]) if setting in sources else None


def _named(run: Run, setting: str, source: str) -> str:
    if setting not in OUTSIDE:
        return f"the function given as {setting}"
    of = f", {PYTHON}," if source == PYTHON else f" of {source}"
    return f"the {OUTSIDE[setting].kind} {getattr(run, setting)}{of}"


def _place(frame: Frame) -> str:
    path = Path(frame.file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return f"{path}:{frame.line}"
