"""Measurements during training, in addition to evaluations.

    lambda_max[:EPOCHS[:SAMPLES]]   largest eigenvalue of the Hessian of the averaged model
    noise[:EPOCHS[:SAMPLES]]        noise of a worker's step, and of the workers' averaged one
    drift[:ROUNDS]                  distances and cosines of the workers just before they
    synchronise

Watching is no part of a run: it changes no bit of what is trained, and its time is not the run's.
A run's folder keeps the records in `watched.jsonl`; the first line says what is watched, so that a
resumed run is watched on. Drift is that of rounds of the outermost level that are longer than one
local step, from the model on which all averaged last.

Shapes: w workers hosted here · K workers · n scalars of a row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, TypeAlias, final

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from localsgd.basics import strict_json
from localsgd.basics.typed_json import check_value
from localsgd.errors import PeerLost, UserError, unknown_name
from localsgd.landscape.drift import DriftHistory
from localsgd.landscape.hooks import Measure, largest_eigenvalue, step_noise
from localsgd.landscape.objective import NotFiniteLoss
from localsgd.train.config.plan import Plan
from localsgd.train.data.sampling.subset import batches_of
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.evaluation import averaged_model
from localsgd.train.engine.results import Count, read_lines
from localsgd.train.engine.run_folder import add_lines, write_whole
from localsgd.wire.broken import first_line, is_broken_connection, is_late

Records = list[dict[str, Any]]
FILE = "watched.jsonl"
SAMPLES = 2000
"""Default for the most training and test samples of a measurement."""


class Watcher(Protocol):
    """One measurement during training. Every process calls it, at the same steps."""

    def start(self, assembly: Assembly) -> None: ...

    def due(self, assembly: Assembly) -> bool:
        """Whether there is something to measure after this step."""
        ...

    def measure(self, assembly: Assembly) -> Records: ...


@final
class AtEpochs:
    """Measures the averaged model at regular epochs, and at the end.

    Args:
        every: epochs.
        build: from what trains to a measure of its averaged model.
    """

    def __init__(self, every: float, build: Callable[[Assembly], Measure]) -> None:
        self.every, self._build = every, build

    def start(self, assembly: Assembly) -> None:
        plan = assembly.plan
        # At most once a step, which gives the same steps.
        every = max(self.every, 1 / plan.steps_per_epoch)
        times = range(1, 1 + math.floor((assembly.run.epochs or 0) / every + 1e-9))
        self._steps = {*(plan.step_at(time * every) for time in times), plan.steps}
        self._measure = self._build(assembly)

    def due(self, assembly: Assembly) -> bool:
        return assembly.workers.step in self._steps

    def measure(self, assembly: Assembly) -> Records:
        """The records of a measurement, or one that says why there is none."""
        try:
            found = measured_or_why(lambda: self._measure(averaged_model(assembly)))
        except (UserError, RuntimeError) as error:
            found = _why_not(error)
        about = {"epoch": assembly.epoch, "step": assembly.workers.step}
        return [{**record, **about} for record in found]


def measured_or_why(measure: Callable[[], Records]) -> Records:
    """The records of a measurement, or one that says that the model has diverged."""
    try:
        return measure()
    except (NotFiniteLoss, torch.linalg.LinAlgError) as error:
        return [{"kind": "not measured", "why": str(error)}]


def _why_not(error: UserError | RuntimeError) -> Records:
    """Says why a model can't be measured. In a single process training goes on; with several,
    others may wait in the middle of the measurement. A lost process is no fault of the model.
    """
    if isinstance(error, PeerLost) or is_broken_connection(error) or is_late(error):
        raise error
    why = first_line(error)
    if dist.is_initialized() and dist.get_world_size() > 1:
        raise UserError(
            f"what --watch asks for can't be measured of this model ({why}); go on with "
            "--processes 1, which leaves it out"
        ) from error
    warnings.warn(f"not measured, and training goes on: {why}", stacklevel=2)
    return [{"kind": "not measured", "why": why}]


@final
class DriftWatcher:
    """Measures all workers' rows after a round's last local step, before they synchronise.

    Args:
        every: a record is made of every so many rounds, counted from the start of the run.
    """

    def __init__(self, every: int = 1) -> None:
        self.every = every
        self._history = DriftHistory()
        self._anchor: Tensor | None = None
        self._begun = 0  # the step of the anchor
        self._rows: Tensor | None = None

    def start(self, assembly: Assembly) -> None:
        if not assembly.plan.delay.none or assembly.plan.gossips:
            raise UserError(
                "drift is measured from the last average of all workers, but with delay, "
                "fragments or neighbours they never hold the same model; watch something else"
            )

        def before() -> None:
            lengths = assembly.position.lengths
            if math.prod(lengths) == 1:
                self._anchor = None
            elif assembly.position.left == lengths:
                self._anchor = assembly.workers.params[0].clone()
                self._begun = assembly.workers.step

        def after() -> None:
            if self._anchor is not None and _ends_round(assembly):
                self._rows = _all_rows(assembly)

        assembly.workers.around_steps(before, after)

    def due(self, assembly: Assembly) -> bool:
        return self._rows is not None

    def measure(self, assembly: Assembly) -> Records:
        assert self._rows is not None, "it is due"
        assert self._anchor is not None, "rows are looked at where a round began"
        step = assembly.workers.step
        record = self._history.observe(self._rows, self._anchor, step=step)
        self._rows = None
        wanted = assembly.syncs[-1] % self.every == 0 or step == assembly.plan.steps
        return [{**record, "local_steps": step - self._begun}] if wanted else []


def _ends_round(assembly: Assembly) -> bool:
    """Whether all levels average after the current local step, which is not counted yet."""
    position = assembly.position
    closes = position.left[0] == 1 and position.depth == len(assembly.levels)
    return closes or assembly.workers.step + 1 == assembly.plan.steps


def _all_rows(assembly: Assembly) -> Tensor:
    """A copy of all workers' rows [K, n]."""
    rows = assembly.workers.params.clone().unsqueeze(0)
    return assembly.placement.world.gather(rows).wait()[0]


@dataclass
class Watching:
    """All measurements during one run; it does nothing without watchers.

    Args:
        what: as it was asked for.
        watchers: those that it names.
        path: of the run's folder.
    """

    what: str = ""
    watchers: Sequence[Watcher] = field(default_factory=tuple)
    path: Path = field(default_factory=Path)

    def start(self, assembly: Assembly) -> None:
        """Called before the first step, or the first one after resuming."""
        if not self.watchers:
            return
        if assembly.placement.rank == 0:
            about = {"kind": "watching", "what": self.what, "step": 0}
            rows = [row for row in records(self.path) if row["kind"] != about["kind"]]
            kept = [about, *(row for row in rows if row["step"] <= assembly.workers.step)]
            write_whole(self.path / FILE, "".join(_line(row) for row in kept).encode())
        for watcher in self.watchers:
            watcher.start(assembly)

    def records(self) -> Records:
        """What has been measured so far."""
        if not self.watchers:
            return []
        return [row for row in records(self.path) if row["kind"] != "watching"]

    def keep(self, found: Records) -> None:
        """Records what was measured before this run went on from there, in place of anything else.

        A run that was cut off may have kept it before.
        """
        if self.watchers:
            write_whole(self.path / FILE, "".join(_line(row) for row in found).encode())

    def due(self, assembly: Assembly) -> bool:
        return any(watcher.due(assembly) for watcher in self.watchers)

    def measure(self, assembly: Assembly) -> Records:
        """Makes, records and returns the measurements that are due."""
        found = [
            record
            for watcher in self.watchers
            if watcher.due(assembly)
            for record in watcher.measure(assembly)
        ]
        if found and assembly.placement.rank == 0:
            add_lines(self.path / FILE, found)
        return found


def watch(what: str, path: Path) -> Watching:
    """The watchers that a text such as `lambda_max:5,drift` names, for the run in `path`.

    Raises:
        UserError: says which part isn't understood, and what would be.
    """
    parts = [part.strip() for part in what.split(",") if part.strip()]
    return Watching(what, [_watcher(part) for part in parts], path)


def records(path: Path) -> Records:
    """The records of `--watch` in `path`, oldest first; a last line cut short is left out.

    Raises:
        UserError: names the line that is no record.
    """
    file = path / FILE
    if not file.exists():
        return []
    rows = []
    for at, found in read_lines(file):
        check_value(found, _Any, f"{file}:{at}")
        rows.append(found)
    return rows


class _Record(msgspec.Struct, tag_field="kind"):
    step: Count


class _Asked(_Record, tag="watching"):
    what: str


class _Measured(_Record):
    epoch: float


class _NotMeasured(_Measured, tag="not measured"):
    why: str


class _Eigenvalue(_Measured, tag="largest eigenvalue"):
    data: str
    largest: float | None


class _Noise(_Measured, tag="step noise"):
    worker: float | None
    averaged: float | None
    ratio: float | None
    workers: Count


_Lengths = Annotated[list[float | None], msgspec.Meta(min_length=1)]


class _Drift(_Record, tag="drift"):
    to_mean: _Lengths
    updates: _Lengths
    between: float | None
    cosine: float | None
    alignment: float | None
    between_rounds: float | None = None


_Any: TypeAlias = _Asked | _NotMeasured | _Eigenvalue | _Noise | _Drift


def watched(path: Path) -> str:
    """The `--watch` setting of the run in `path`; empty if it has none."""
    return next((row["what"] for row in records(path) if row["kind"] == "watching"), "")


def _line(record: dict[str, Any]) -> str:
    return strict_json.dumps(record) + "\n"


def _watcher(part: str) -> Watcher:
    name, *numbers = part.split(":")
    if name not in _KINDS:
        raise unknown_name("thing to watch", name, tuple(_KINDS))
    build, names, usual = _KINDS[name]
    if len(numbers) > len(names):
        raise UserError(f"--watch {part} has too many numbers; write {_form(name)}")
    given = [_number(value, part, name) for value in numbers]
    return build(*given, *usual[len(given) :])


def _number(text: str, part: str, name: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise UserError(f"--watch {part} is not understood: {text!r}; write {_form(name)}")
    return value


def _form(name: str) -> str:
    return ":".join([name, *_KINDS[name][1]]) + " with numbers above 0"


def lambda_max(every: float = 1.0, samples: float = SAMPLES) -> Watcher:
    """Watches the largest eigenvalue on this many training and test samples."""

    def build(assembly: Assembly) -> Measure:
        data = batches_of(assembly.task, _whole(samples))
        return largest_eigenvalue(assembly.task.loss, data, group=_group())

    return AtEpochs(every, build)


def noise(every: float = 1.0, samples: float = SAMPLES) -> Watcher:
    """Watches gradient noise, with traces estimated on this many training samples."""

    def build(assembly: Assembly) -> Measure:
        run, task = assembly.run, assembly.task
        data = batches_of(task, _whole(samples), names=("train",))["train"]
        largest = (run.batch or 1) * _growth(assembly.plan, assembly.plan.steps)
        if largest * assembly.plan.topology.workers > task.train_size:
            raise UserError(
                f"--watch noise draws batches from the {task.train_size:,} training samples, and "
                f"a step takes {assembly.plan.topology.workers} x {largest} of them; watch "
                "something else"
            )

        def measure(model: nn.Module) -> Records:
            of_now = step_noise(
                task.loss,
                data,
                local_batch=(run.batch or 1) * _growth(assembly.plan, assembly.workers.step),
                workers=assembly.plan.topology.workers,
                population=task.train_size,
                group=_group(),
            )
            return of_now(model)

        return measure

    return AtEpochs(every, build)


def _growth(plan: Plan, step: int) -> int:
    """How many batches each worker has taken at this step: H with a batch that has grown."""
    grown = plan.method.grows_batch and step > plan.switch
    return (plan.run.local_steps or (1,))[0] if grown else 1


def _whole(samples: float) -> int:
    return max(1, round(samples))


def _group() -> ProcessGroup | None:
    return dist.group.WORLD if dist.is_initialized() else None


_KINDS: dict[str, tuple[Callable[..., Watcher], tuple[str, ...], tuple[float, ...]]] = {
    "lambda_max": (lambda_max, ("EPOCHS", "SAMPLES"), (1.0, SAMPLES)),
    "noise": (noise, ("EPOCHS", "SAMPLES"), (1.0, SAMPLES)),
    "drift": (lambda rounds: DriftWatcher(_whole(rounds)), ("ROUNDS",), (1,)),
}
