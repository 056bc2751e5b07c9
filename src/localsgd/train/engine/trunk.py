"""The plain beginning of a run, trained once and gone on from by all runs that share it.

Post-local SGD is mini-batch SGD until its switch, whatever H is to come; so is a batch that will
grow, and mini-batch SGD itself. All of them with one seed see the same samples, so that the workers
at the switch are the same to the last bit. A trunk is those workers at a decay of the learning rate
or at a switch, with all that a run has counted, evaluated and measured until then; a later trunk
goes on from an earlier one. Each process keeps the workers that it hosts in a file of its own, so a
trunk is for runs on as many processes.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from localsgd.basics.files import (
    as_saved,
    check_no_link,
    check_regular,
    open_anew,
    open_to_add,
)
from localsgd.schedule.fixed import PostLocal
from localsgd.train.config.plan import Plan
from localsgd.train.config.run import Run, to_json
from localsgd.train.data import tasks
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import Assembly
from localsgd.train.engine.execution import (
    Execution,
    barrier,
    cycle_ends,
    evaluation_steps,
    locals_due,
    prepare,
    processes,
)
from localsgd.train.engine.observer import Observer, Observers
from localsgd.train.engine.watching import Watching, watch
from localsgd.train.launch.equal_arguments import gather_bytes
from localsgd.version import __version__
from localsgd.wire.metered import Waiting

CHECKPOINT_EVERY = 4
"""Evaluations from one checkpoint of a run to the next."""


class Reached(Exception):
    """A run is where it was to stop."""


class Until(Observers):
    """Stops a run after a step, once that step has been measured and evaluated where it is due.

    Args:
        step: the last one.
        observer: is told what happens until then.
        watching: what is measured.
    """

    def __init__(self, step: int, observer: Observer, watching: Watching) -> None:
        super().__init__(observer)
        self._step = step
        self._watching = watching
        self._evaluating = False
        self._last = False

    def started(self, assembly: Assembly) -> None:
        super().started(assembly)
        self._evaluating = self._step in evaluation_steps(assembly.plan)

    def stepped(self, assembly: Assembly) -> None:
        super().stepped(assembly)
        self._last = assembly.workers.step == self._step
        if self._last and not self._evaluating and not self._watching.due(assembly):
            raise Reached

    def measured(self, records: Sequence[Mapping[str, Any]]) -> None:
        super().measured(records)
        if self._last and not self._evaluating:
            raise Reached

    def evaluated(self, row: dict[str, Any]) -> None:
        super().evaluated(row)
        if row["step"] == self._step:
            raise Reached


def milestones(plan: Plan) -> list[int]:
    """The steps of a run at which it shares workers with others, the first one first."""
    plain = _plain_until(plan)
    points = {step for step in plan.learning_rate.decays if step <= plain} | {plain}
    return sorted(step for step in points if 0 < step < plan.steps)


def _plain_until(plan: Plan) -> int:
    """The first step at which the run may differ from mini-batch SGD; 0 if it does at once."""
    run = plan.run
    if run.delay or run.inner_state or run.outer != "average" or run.slowdown:
        return 0
    if cycle_ends(plan):  # whose snapshots belong to the run
        return 0
    if run.method == "mini-batch":
        return plan.steps
    if "switch" not in plan.method.uses:
        return 0
    plain = (isinstance(one, PostLocal) and one.after == plan.switch for one in plan.schedules)
    return plan.switch if all(plain) else 0


def own_samples(plan: Plan, seen: set[tuple[Run, int]]) -> int:
    """The samples that a run trains on, without those that it shares with runs before it.

    Args:
        plan: of the run.
        seen: trunks of the runs before; those of this one are added.
    """
    start = 0
    for step in milestones(plan):
        point = plain(plan.run), step
        start = step if point in seen else start
        seen.add(point)
    return (plan.steps - start) * plan.batch


def start(
    execution: Execution,
    scratch: Path,
    *,
    version: object = "",
    observer: Observer | None = None,
    prepare: Callable[..., Execution] = prepare,
    waiting: Waiting = nullcontext,
) -> None:
    """Puts a new run at its last milestone, trained for it or by another before it.

    Every process must call it.

    Args:
        execution: of the run, at its first step.
        scratch: the folder of the trunks, seen by all processes, which may be removed while none
            of them trains.
        version: of the numbers: trunks of another one are not gone on from.
        observer: watches the trunk as it trains.
        prepare: `execution.prepare`, told of this process.
        waiting: a context around the time in which this process waits for others.
    """
    assembly = execution.assembly
    steps = milestones(assembly.plan)
    if not steps:
        return
    by_worker, what = execution.by_worker, execution.watching.what
    run = plain(assembly.run, by_worker)
    folder = scratch / "trunks"
    task = assembly.task
    maker = _Maker(run, task, folder, version, observer, by_worker, what, prepare, waiting)
    _thaw(execution, maker.trained(steps))


def plain(run: Run, by_worker: bool = False) -> Run:
    """Mini-batch SGD with all that a run sets beside its local steps."""
    return msgspec.structs.replace(
        run,
        method="mini-batch",
        local_steps=(1,) * len(run.local_steps or (1,)),
        switch="first-decay",
        evaluate_local="always" if locals_due(run, by_worker) else "never",
    )


@dataclass(frozen=True)
class _Maker:
    """Makes the trunks of one plain run. Every process must call it."""

    run: Run
    task: Task
    folder: Path
    version: object
    observer: Observer | None
    by_worker: bool
    watch: str
    prepare: Callable[..., Execution]
    waiting: Waiting

    def trained(self, steps: list[int]) -> Path:
        """This process's file of the trunk at the last of `steps`, made where it is missing."""
        path = self.folder / f"{self._digest}-{steps[-1]:08d}.pt"
        check_no_link(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            with self.waiting():
                if _rank() == 0:
                    held.enter_context(alone(path.with_suffix(".lock")))
                there = _first_says(path.exists())
            if not there:
                earlier = self.trained(steps[:-1]) if steps[1:] else None
                self._train(steps[-1], earlier, path)
        return _own(path)

    def _train(self, step: int, earlier: Path | None, path: Path) -> None:
        folder = path.with_suffix(".run")
        check_no_link(folder)
        watching = watch(self.watch, folder)
        until = Until(step, self.observer or Observer(), watching)
        execution = opened(
            self.run, self.task, folder, until, self.by_worker, watching, self.prepare
        )
        if earlier is not None and execution.assembly.workers.step == 0:
            _thaw(execution, earlier)
        try:
            execution.train()
        except Reached:
            execution.count_time()
            with self.waiting():
                self._write(execution, path)
        if _rank() == 0:
            shutil.rmtree(folder)

    def _write(self, execution: Execution, path: Path) -> None:
        """Process 0's file is there once all are."""
        partial = _own(path).with_suffix(".partial")
        with open_anew(partial) as file:
            torch.save(_frozen(execution), file)
        if _rank():
            os.replace(partial, _own(path))
        barrier()
        if _rank() == 0:
            os.replace(partial, path)
        barrier()

    @property
    def _digest(self) -> str:
        """A digest of the run and the version of the numbers, of an unusual amount of data, and of
        what else a trunk holds.
        """
        run, task = self.run, self.task
        usual = run.train_samples or tasks.card(run.task).train_size
        size = "" if task.train_size == usual else f"-{task.train_size}-{task.classes}"
        version = f"{__version__}-{self.version}" + "-by-worker" * self.by_worker
        version += f"-watch={self.watch}" * bool(self.watch)
        version += f"-on-{processes()}" * (processes() > 1)
        return hashlib.sha256(to_json(run) + f"{version}{size}".encode()).hexdigest()[:16]


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def _own(path: Path) -> Path:
    """This process's file beside that of process 0, which is the last to be there."""
    return path.with_suffix(f".{_rank()}.pt") if _rank() else path


def _first_says(found: bool) -> bool:
    """What process 0 has found."""
    return gather_bytes(bytes([found]))[0] == b"\1" if dist.is_initialized() else found


def opened(
    run: Run,
    task: Task,
    folder: Path,
    observer: Observer,
    by_worker: bool = False,
    watching: Watching | None = None,
    prepare: Callable[..., Execution] = prepare,
) -> Execution:
    """A run in that folder, which goes on where it was cut off."""
    begun = _first_says((folder / "run.json").is_file())
    if not begun and _rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    return prepare(
        run,
        task,
        folder,
        observer,
        resuming=begun,
        checkpoint_every=CHECKPOINT_EVERY,
        by_worker=by_worker,
        watching=watching,
    )


def _frozen(execution: Execution) -> dict[str, Any]:
    """All that runs which go on need. Rows that are alike are kept once."""
    assembly, workers = execution.assembly, execution.assembly.workers
    states = [workers.state(row) for row in range(len(workers.ids))]
    first = _whole(states[0])  # A view would be saved with all the memory that it lies in.
    return {
        "workers": [_shared(state, first) for state in states],
        "levels": [_whole(level.state()) for level in assembly.levels],
        "step": workers.step,
        "shared": assembly.position.lockstep,
        "syncs": assembly.syncs,
        "model_syncs": assembly.inner_states.syncs,
        "ledger": assembly.ledger.state(),
        "seconds": execution.seconds,
        "paused": execution.paused,
        "rows": execution.folder.metrics(),
        "watched": execution.watching.records(),
    }


def _thaw(execution: Execution, path: Path) -> None:
    """Goes on from a trunk's file.

    Raises:
        UserError: it is damaged.
    """
    check_regular(path)
    with as_saved(path, "remove it, and what it holds is trained again"):
        _take(execution, torch.load(path, weights_only=True))


def _take(execution: Execution, kept: dict[str, Any]) -> None:
    assembly, workers = execution.assembly, execution.assembly.workers
    for row, state in enumerate(kept["workers"]):
        workers.load(row, copy.deepcopy(state))
    workers.step = kept["step"]
    assembly.position.lockstep = kept["shared"]
    for level, state, count in zip(assembly.levels, kept["levels"], kept["syncs"], strict=True):
        level.load(state)
        level.syncs = count
    assembly.ledger.load(kept["ledger"])
    assembly.inner_states.syncs = kept["model_syncs"]
    execution.seconds, execution.paused = kept["seconds"], dict(kept.get("paused", {}))
    if execution.leads:
        execution.watching.keep(kept["watched"])
        for row in kept["rows"]:
            execution.folder.append(row)


def _shared(value: Any, first: Any) -> Any:
    """`value` with the first worker's tensors in place of equal ones."""
    if isinstance(value, Tensor):
        return first if torch.equal(value, first) else value.clone()
    if isinstance(value, dict):
        return {key: _shared(item, first[key]) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_shared(a, b) for a, b in zip(value, first, strict=True))
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(map(_whole, value))
    return {key: _whole(item) for key, item in value.items()} if isinstance(value, dict) else value


@contextmanager
def alone(path: Path) -> Generator[None]:
    """One process at a time; a process that dies lets go."""
    with open_to_add(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
