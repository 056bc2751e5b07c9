"""A run that is described and trained in Python."""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from localsgd.basics.console import Console
from localsgd.basics.files import expanded
from localsgd.basics.refused import explained
from localsgd.errors import UserError, short, unknown_name
from localsgd.schedule.progress import is_whole
from localsgd.train.config.blame import naming_parts
from localsgd.train.config.complete import complete_run
from localsgd.train.config.parts import PYTHON, changed_plugins
from localsgd.train.config.run import Run as Settings
from localsgd.train.data import tasks
from localsgd.train.data.models import Build, Rule
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import Own, model_of, pick_device
from localsgd.train.engine.execution import Execution, Interrupted, barrier
from localsgd.train.engine.observer import Observer, Observers
from localsgd.train.engine.run_folder import Folder
from localsgd.train.launch import World, gather_bytes
from localsgd.train.runs.live import Live
from localsgd.train.runs.opened import opened
from localsgd.train.runs.result import ByWorker, Result, load, weights_in
from localsgd.train.runs.session import session

AnyModel: TypeAlias = str | nn.Module | Callable[..., nn.Module]
"""A name; a module, which is copied; or a function, of the task or of nothing, that makes one."""


@dataclass(frozen=True)
class Limits:
    """How a run is carried out; its result does not depend on it.

    Args:
        data_dir: folder of the data of a task that is named; the usual places if not given.
        checkpoint_every: evaluations from one checkpoint to the next.
        heartbeat_seconds: within which all processes stop after one has died or hangs.
        timeout_minutes: of one collective; it must be longer than the slowest round.
        watch: what to measure during training, as `--watch`.
        by_worker: evaluations look at the workers' own models too, and at their drift, as with
            `--log`.
    """

    data_dir: Path | str | None = None
    checkpoint_every: int = 1
    heartbeat_seconds: float = 30.0
    timeout_minutes: float = 120.0
    watch: str = ""
    by_worker: bool = False

    def __post_init__(self) -> None:
        if not is_whole(self.checkpoint_every, least=1):
            raise UserError(
                f"checkpoint_every = {self.checkpoint_every!r} is no number of evaluations; give 1 "
                "or more"
            )
        for name in ("heartbeat_seconds", "timeout_minutes"):
            if not 0 < getattr(self, name) < 1e9:
                raise UserError(f"{name} = {getattr(self, name)!r} is out of range; give above 0")


class Run:
    """A training run: what the command line's `localsgd run` does, with objects in place of names.

    Examples:
        >>> run = Run(task="digits", method="local", workers=4, local_steps=8, epochs=2)
        >>> run.settings.lr_batch
        16

    Args:
        task: a name, or a `Task` of your own (`task_of` makes one of tensors).
        model: a name; a module; or a function that makes one, of the task or of nothing. It is
            called once in each process with torch's generator seeded by `seed`, and the weights
            that it has then are those that training starts from.
        no_decay: which parameters have no weight decay: `usual` (biases, normalisation,
            embeddings), `batch-norm`, `nothing`, or a function from a model to their names;
            `batch-norm` for models of this package and `usual` for others if not given.
        settings: all others of `localsgd run`, with underscores: `method`, `workers`, `topology`,
            `local_steps`, `epochs`, `batch`, `lr`, `compression`, `outer`, `seed`, ...

    Attributes:
        settings: all of the run, with everything filled in that was left open.

    Raises:
        UserError: a setting is unknown, out of range, or contradicts another.
    """

    def __init__(
        self,
        task: str | Task = "digits",
        model: AnyModel | None = None,
        *,
        no_decay: str | Rule | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(task, str | Task):
            raise UserError(f"task {short(task)} is none; give a name, or a Task (see task_of)")
        own_task = None if isinstance(task, str) else task
        card = tasks.card(task) if isinstance(task, str) else task.card
        name = task if isinstance(task, str) else card.name
        named = {"task": name, "model": _name_of_model(model)}
        if no_decay is not None:
            named["no_decay"] = no_decay if isinstance(no_decay, str) else "auto"
        completed = complete_run(_settings({**settings, **named}), card)
        objects = {"task": own_task, "model": model, "no_decay": no_decay}
        given = [
            f"{kind} {getattr(completed, kind)}: {PYTHON}"
            for kind, thing in objects.items()
            if thing is not None and not isinstance(thing, str)
        ]
        self.settings = msgspec.structs.replace(completed, plugins=(*completed.plugins, *given))
        self._task = own_task
        self._own = Own(
            None if model is None or isinstance(model, str) else _build_of(model),
            None if no_decay is None or isinstance(no_decay, str) else no_decay,
        )
        self._kept: Path | None = None

    def train(
        self,
        out: Path | str | None = None,
        observers: Sequence[Observer] = (),
        *,
        progress: bool = True,
        limits: Limits | None = None,
    ) -> Result:
        """Trains to the end, or from where it was interrupted to the end.

        Ctrl-C, or a notebook's stop button, ends it after the current step with a checkpoint. The
        same call goes on from there with the same bits. A run that has ended is not trained again:
        its result is read. In processes of torchrun or srun all of them call this.

        Args:
            out: the run's folder, new or with this run in it. Without one, what an interrupted run
                has done is kept with this object.
            observers: watch it, in the order in which they are called.
            progress: shows a bar on a terminal or in a notebook, else a line for each evaluation.
            limits: how it is carried out.

        Raises:
            UserError: the folder holds another run, or something else.
            Interrupted: it was asked to stop.
            PeerLost: another process has died.
        """
        for one in observers:
            if not isinstance(one, Observer):
                raise UserError(f"observer {short(one)} is none; give a localsgd.train.Observer")
        limits = limits or Limits()
        device = pick_device(self.settings.device)
        seconds = 60 * limits.timeout_minutes
        with session(device.type, seconds, limits.heartbeat_seconds) as (world, heartbeat):
            path = _same_on_all(self._path(out, world))
            state = _state(path, self.settings, world)
            if state == "ended":
                return _read_by_all(self._loaded(path, self._data(limits, world), out is None))
            console = Console()
            loud = progress and world.rank == 0
            if state == "begun" and loud:
                _print_changed(console, Folder(path).run)
            with Live(console, quiet=not loud) as live:
                carried_out = opened(
                    self.settings,
                    self._data(limits, world),
                    path,
                    Observers(live, *observers),
                    world=world,
                    heartbeat=heartbeat,
                    resuming=state == "begun",
                    timeout=timedelta(seconds=seconds),
                    checkpoint_every=limits.checkpoint_every,
                    watch=limits.watch,
                    by_worker=limits.by_worker,
                    own=self._own,
                )
                with carried_out as execution, _going_on_here():
                    summary = execution.train()
            return _read_by_all(_result(execution, summary, None if out is None else path))

    def _path(self, out: Path | str | None, world: World) -> Path:
        if out is not None:
            return expanded(out).absolute()
        if self._kept is None and world.rank == 0:
            self._kept = Path(tempfile.mkdtemp(prefix="localsgd-run-"))
            weakref.finalize(self, shutil.rmtree, self._kept, ignore_errors=True)
        return (self._kept or Path()) / "run"

    def _loaded(self, path: Path, task: Task, kept: bool) -> Result:
        found = load(path)
        model = model_of(self.settings, task, torch.device("cpu"), weights=False, own=self._own)
        model.load_state_dict(found.weights)
        return replace(found, model=model.eval(), path=None if kept else path)

    def _data(self, limits: Limits, world: World) -> Task:
        run = self.settings
        task = self._task
        if task is None:
            place = None if limits.data_dir is None else expanded(limits.data_dir)
            device = pick_device(run.device, world.local_rank)
            with naming_parts(run):
                task = tasks.load(run.task, place, device=device)
        with naming_parts(run):
            return task if run.train_samples is None else task.subset(run.train_samples)

    def __repr__(self) -> str:
        run = self.settings
        return f"Run({run.method}, {run.model} on {run.task}, {run.topology}, seed {run.seed})"


_BY_NAME = {
    "method": ("method", "schedules", "it"),
    "schedule": ("method", "schedules", "it"),
    "local_steps": ("method", "schedules", "it"),
    "compression": ("compression", "compressors", "lambda: it"),
    "compressor": ("compression", "compressors", "lambda: it"),
    "reducer": ("compression", "compressors", "lambda: it"),
    "outer": ("outer", "outers", "lambda: it"),
}
"""By what a user may write: the setting, the kind of part, and what is given a name."""


def _check_named(name: str, value: Any) -> None:
    """Refuses an object where a name is wanted, and says how it gets one."""
    if name not in _BY_NAME or value is None:
        return
    setting, kind, given = _BY_NAME[name]
    if name == "local_steps" and not callable(value):
        if isinstance(value, str):
            raise UserError(
                f"local_steps is {value!r}; give a whole number, or one for each level: (2, 8)"
            )
        return
    if not isinstance(value, str):
        raise UserError(
            f"{name} is {short(value)}, and a run has names; give it one by "
            f'localsgd.train.add("{kind}", "mine", {given}), and write {setting}="mine"'
        )
    if name not in Settings.__struct_fields__:
        raise UserError(f"there is no setting {name}; write {setting}={value!r}")


def _settings(given: Mapping[str, Any]) -> Settings:
    for name, value in given.items():
        _check_named(name, value)
        if name not in Settings.__struct_fields__ or name == "plugins":
            raise unknown_name("setting", name, Settings.__struct_fields__[:-1])
    plain = {
        name: (value,) if name == "local_steps" and isinstance(value, int) else value
        for name, value in given.items()
    }
    if isinstance(plain.get("topology"), int):
        plain["topology"] = str(plain["topology"])
    try:
        return msgspec.convert(plain, Settings)
    except (msgspec.ValidationError, OverflowError) as error:
        raise UserError(": ".join(explained(error, Settings))) from None


def _name_of_model(model: AnyModel | None) -> str | None:
    if model is None or isinstance(model, str):
        return model
    if not callable(model):
        raise UserError(
            f"model {short(model)} is none; give a name, a torch.nn.Module, or a function that "
            "makes one"
        )
    name = type(model).__name__ if isinstance(model, nn.Module) else _name_of(model)
    return name if name.isidentifier() else "own"


def _name_of(thing: Any) -> str:
    return getattr(thing, "__name__", type(thing).__name__)


def _build_of(model: nn.Module | Callable[..., nn.Module]) -> Build:
    if isinstance(model, nn.Module):
        return lambda task: copy.deepcopy(model)
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    needed = [
        one
        for one in signature(model).parameters.values()
        if one.kind in positional and one.default is Parameter.empty
    ]
    if len(needed) > 1:
        raise UserError(
            f"model {_name_of(model)} needs {len(needed)} arguments; give a function of the task, "
            "or of nothing, such as lambda: MyNet(64, 10)"
        )
    return model if needed else lambda task: model()


def _same_on_all(path: Path) -> Path:
    """Rank 0's path."""
    return Path(os.fsdecode(gather_bytes(os.fsencode(path))[0])) if dist.is_initialized() else path


def _state(path: Path, settings: Settings, world: World) -> str:
    """Whether the run in a folder is `new`, `begun` or `ended`.

    Process 0 looks, so that all go on alike.

    Raises:
        UserError: it is another run.
    """
    found = _look(path, settings) if world.rank == 0 else "new"
    if dist.is_initialized():
        found = gather_bytes(found.encode())[0].decode()
    if found.startswith("!"):
        raise UserError(found[1:])
    return found


def _look(path: Path, settings: Settings) -> str:
    """As `_state`; an error, with `!` before it, must reach the other processes too."""
    try:
        if not (path / "run.json").is_file():
            Folder.check_new(path, "out=")
            return "new"
        folder = Folder(path)
        there = _without_versions(folder.run)
        if there != _without_versions(settings):
            wanted = msgspec.structs.asdict(_without_versions(settings))
            differing = [
                name
                for name, value in msgspec.structs.asdict(there).items()
                if value != wanted[name]
            ]
            return (
                f"!{path} holds a run with other settings ({', '.join(differing)}); give another "
                "folder, or the settings that it was begun with"
            )
        return "ended" if folder.summary() is not None else "begun"
    except UserError as error:
        return f"!{error}"


def _without_versions(run: Settings) -> Settings:
    return msgspec.structs.replace(run, plugins=())


def _print_changed(console: Console, before: Settings) -> None:
    named = tuple(text for text in before.plugins if not text.endswith(f": {PYTHON}"))
    for note in changed_plugins(msgspec.structs.replace(before, plugins=named)):
        console.print(note)


@contextmanager
def _going_on_here() -> Generator[None]:
    try:
        yield
    except Interrupted:
        raise Interrupted("interrupted; the same train() goes on from here") from None


def _read_by_all(result: Result) -> Result:
    """`result`, once all processes have theirs: the folder may go with the first one's `Run`."""
    barrier()
    return result


def _result(execution: Execution, summary: Mapping[str, Any], path: Path | None) -> Result:
    folder, workers = execution.folder, execution.assembly.workers
    weights = weights_in(folder)
    model = copy.deepcopy(workers.models[0]).cpu()
    model.load_state_dict(weights)
    local = ByWorker(
        (worker, {name: value.detach().cpu().clone() for name, value in one.state_dict().items()})
        for worker, one in zip(workers.ids, workers.models, strict=True)
    )
    run = execution.assembly.run
    return Result(run, folder.metrics(), summary, weights, model.eval(), local, path)
