"""Executes a run: trains, evaluates, records and saves; it may be interrupted at any moment.

Only process 0 writes records; every process writes the checkpoints of its own workers.
"""

from __future__ import annotations

import hashlib
import math
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import nn

from localsgd.averaging.placement import placement_of
from localsgd.basics.files import as_saved
from localsgd.train.config.parts import going_on
from localsgd.train.config.plan import Plan, known
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task
from localsgd.train.engine import checkpoints
from localsgd.train.engine.assembly import NAMED, Assembly, Own, assemble, pick_device
from localsgd.train.engine.environment import environment
from localsgd.train.engine.evaluation import averaged_model, drift_of, local_score, score
from localsgd.train.engine.observer import Observer
from localsgd.train.engine.results import Amount
from localsgd.train.engine.run_folder import Folder
from localsgd.train.engine.watching import Watching
from localsgd.train.launch.equal_arguments import check_same
from localsgd.wire.metered import Waiting


class Interrupted(Exception):
    """The run was asked to stop. Its text says how to continue."""


class _Spent(msgspec.Struct):
    """What a run adds to its checkpoints."""

    seconds: Amount
    paused: dict[str, Amount]


@dataclass
class Execution:
    """The execution of one run.

    Args:
        assembly: workers, levels and plan.
        folder: for its records.
        observer: shows the progress.
        checkpoint_every: evaluations between checkpoints.
        watching: measurements during training.
        by_worker: evaluations look at the workers' own models too, and at their drift, as loggers
            want; equal on all processes.
        seconds: training time so far, without evaluation and saving.
        paused: seconds so far that were no training, by activity.
    """

    assembly: Assembly
    folder: Folder
    observer: Observer
    checkpoint_every: int = 1
    watching: Watching = field(default_factory=Watching)
    by_worker: bool = False
    seconds: float = 0.0
    paused: dict[str, float] = field(default_factory=dict)
    _since: float = field(default=0.0, init=False)
    _stop: bool = field(default=False, init=False)
    _saved_step: int | None = field(default=None, init=False)
    _drift: dict[str, float] | None = field(default=None, init=False)

    @property
    def leads(self) -> bool:
        """Whether this process writes the records."""
        return self.assembly.placement.rank == 0

    @property
    def alone(self) -> bool:
        return not dist.is_initialized()

    def resume(self) -> None:
        """Continues from the newest checkpoint, or from the start if there is none."""
        checkpoints.check_no_links(self.folder.checkpoints)
        found = checkpoints.checkpoints(self.folder.checkpoints)
        step = 0
        if found:
            kept = checkpoints.load(self.assembly, found[-1])
            with as_saved(found[-1], checkpoints.ADVICE):
                spent = msgspec.convert(kept, _Spent)
            self.seconds, self.paused = spent.seconds, spent.paused
            step = self.assembly.workers.step
        if self.leads:
            self.folder.forget_after(step)
        barrier()

    def train(self) -> dict[str, Any]:
        """Trains to the end; returns the summary."""
        assembly = self.assembly
        self._due = evaluation_steps(assembly.plan)
        self.observer.started(assembly)
        self.watching.start(assembly)
        if self.by_worker:
            assembly.workers.around_steps(after=self._before_sync)
        self._since = time.perf_counter()
        if assembly.workers.step < assembly.plan.steps:
            with self._stoppable():
                assembly.advance(self._after_step)
        return self._finish()

    def _before_sync(self) -> None:
        """Measures drift where it is evaluated, before a sync that may end the local step."""
        if self.assembly.workers.step + 1 in self._due:  # the step is not counted yet
            with self._off_the_clock("evaluating"):
                self._drift = self._measured_drift()

    def _measured_drift(self) -> dict[str, float]:
        return drift_of(self.assembly.workers.params, self.assembly.placement.world)

    def _after_step(self) -> None:
        self.observer.stepped(self.assembly)
        step = self.assembly.workers.step
        if self.watching.due(self.assembly):
            with self._off_the_clock("measuring"):
                self.observer.measured(self.watching.measure(self.assembly))
        if step in self._due:
            with self._off_the_clock("evaluating"):
                self._evaluate()
            if self._due[step] % self.checkpoint_every == 0 or step == self.assembly.plan.steps:
                self.save()
        if self._stop:
            if self.alone and self._saved_step != step:
                self.save()
            again = going_on(self.assembly.run, self.folder.path)
            raise Interrupted(f"interrupted; go on with: {again}")

    def save(self) -> None:
        """Writes a checkpoint of this step. Every process must call it."""
        with self._off_the_clock("saving"):
            extra = {"seconds": self.seconds, "paused": dict(self.paused)}
            checkpoints.save(self.assembly, self.folder.checkpoints, barrier, extra)
        self._saved_step = self.assembly.workers.step

    def _evaluate(self) -> None:
        assembly, metric = self.assembly, self.assembly.task.card.metric
        model = averaged_model(assembly)
        result = score(model, assembly)
        step = assembly.workers.step
        cycles = cycle_ends(assembly.plan)
        if step in cycles and self.leads:
            self.folder.snapshot(cycles.index(step) + 1, model)
        row: dict[str, Any] = {
            "step": step,
            "epoch": step / assembly.plan.steps_per_epoch,
            "train_loss": self._train_loss(),
            "test_loss": result.loss,
            metric.key: metric.of(result.loss, result.accuracy),
            "lr": assembly.plan.learning_rate(max(0, step - 1)),
            "local_steps": list(assembly.position.lengths),
            "syncs": assembly.syncs,
            "ledger": assembly.ledger.state(),
            "seconds": self.seconds,
        }
        if locals_due(assembly.run, self.by_worker):
            own = local_score(assembly)
            row[metric.local] = metric.of(own.loss, own.accuracy)
        if self.by_worker:  # without a step of an optimizer (a growing batch), as workers are
            row["drift"] = self._drift or self._measured_drift()
            self._drift = None
        if self.leads:
            self.folder.append(row)
        self.observer.evaluated(row)

    def _train_loss(self) -> float:
        sums, counts = self.assembly.workers.take_losses()
        pairs = torch.stack([sums, torch.tensor(counts).to(sums)], dim=-1).unsqueeze(0)
        total, count = self.assembly.placement.world.sum(pairs).wait()[0].tolist()
        return total / max(1, count)

    def _samples(self) -> int:
        """The samples that all workers have trained on: slow ones take fewer steps."""
        taken = torch.tensor(self.assembly.workers.taken, dtype=torch.float64).view(1, -1, 1)
        steps = self.assembly.placement.world.sum(taken).wait()[0]
        return round(steps.sum().item()) * known(self.assembly.run.batch)

    def _finish(self) -> dict[str, Any]:
        assembly, metric = self.assembly, self.assembly.task.card.metric
        with self._off_the_clock("evaluating"):
            model = averaged_model(assembly)
            result = score(model, assembly)
            own = None if assembly.run.evaluate_local == "never" else local_score(assembly)
        rows = self.folder.metrics()
        best = metric.best_of(rows)
        value = metric.of(result.loss, result.accuracy)
        summary = {
            metric.key: value,
            "test_loss": result.loss,
            "diverged": not (math.isfinite(result.loss + value) and finite(model)),
            "batch_norm": assembly.run.batch_norm,
            metric.local: metric.of(own.loss, own.accuracy) if own else None,
            metric.best: best[metric.key] if best else None,
            "best_epoch": best["epoch"] if best else None,
            "train_loss": rows[-1]["train_loss"] if rows else None,
            "steps": assembly.workers.step,
            "samples": self._samples(),
            "syncs": assembly.syncs,
            "ledger": assembly.ledger.state(),
            "seconds": self.seconds,
            "paused": dict(self.paused),
        }
        with self.observer.pausing("saving"):
            if self.leads:
                self.folder.finish(summary, model)
            barrier()
        self.observer.finished(summary)
        return summary

    def count_time(self) -> None:
        """Adds the training time since it was last counted to `seconds`."""
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now

    @contextmanager
    def _off_the_clock(self, what: str) -> Generator[None]:
        self.count_time()
        began = self._since
        try:
            with self.observer.pausing(what):
                yield
        finally:
            self._since = time.perf_counter()
            self.paused[what] = self.paused.get(what, 0.0) + self._since - began
            self.assembly.observations.leave_out(self._since - began)

    @contextmanager
    def _stoppable(self) -> Generator[None]:
        """Ends the run after the current step on Ctrl-C or SIGTERM.

        A single process writes a checkpoint first. Outside a program's main thread nothing is
        caught, since Python gives signals to that one alone; nor is a signal that is ignored, as
        Ctrl-C is in the background of a script.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self._stop = True

        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {
            number: signal.signal(number, stop)
            for number in wanted
            if signal.getsignal(number) is not signal.SIG_IGN
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def cycle_ends(plan: Plan) -> list[int]:
    """The last steps of a cyclic learning rate's cycles, after which snapshots are saved."""
    if plan.run.lr_schedule != "cyclic":
        return []
    return [min(plan.steps, plan.cycle * number) for number in range(1, plan.run.lr_cycles + 1)]


def evaluation_steps(plan: Plan) -> dict[int, int]:
    """The steps after which the averaged model is evaluated, numbered; the last step is one."""
    run = plan.run
    every = max(run.evaluate_every, 1 / plan.steps_per_epoch)  # at most once a step
    count = int((run.epochs or 0) / every)
    steps = [plan.step_at(number * every) for number in range(1, count + 1)]
    wanted = sorted({*steps, *cycle_ends(plan)})
    ordered = dict.fromkeys([*(step for step in wanted if 0 < step < plan.steps), plan.steps])
    return {step: number for number, step in enumerate(ordered, start=1)}


def locals_due(run: Run, by_worker: bool) -> bool:
    """Whether each evaluation judges the workers' own models too."""
    return run.evaluate_local == "always" or (by_worker and run.evaluate_local != "never")


def finite(model: nn.Module) -> bool:
    """Whether all weights are finite."""
    return all(bool(value.isfinite().all()) for value in model.parameters())


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def prepare(
    run: Run,
    task: Task,
    path: Path,
    observer: Observer,
    *,
    resuming: bool = False,
    local_rank: int = 0,
    timeout: timedelta | None = None,
    waiting: Waiting = nullcontext,
    checkpoint_every: int = 1,
    watching: Watching | None = None,
    by_worker: bool = False,
    own: Own = NAMED,
) -> Execution:
    """Assembles `run`, which is completed, on this process's share of the workers.

    Args:
        path: of the run's folder, which must be new unless the run is resumed.
        resuming: goes on with the run in that folder.
        local_rank: picks the GPU.
        timeout: of the collectives.
        waiting: a context around the time in which this process waits for others.
        checkpoint_every: evaluations from one checkpoint to the next.
        watching: what is measured while it trains.
        by_worker: as of `Execution`.
        own: parts that are given as objects.
    """
    device = pick_device(run.device, local_rank)
    plan = Plan(run, task.train_size)
    plan.check()  # Of the data that is there, which may be less than the task's.
    placement = placement_of(plan.topology, timeout)
    kept = resuming and checkpoints.checkpoints(Folder(path).checkpoints)
    assembly = assemble(run, task, placement, device, waiting, weights=not kept, own=own)
    check_same("starting point", starting_point(assembly))
    watching = watching or Watching()
    folder = Folder(path)
    execution = Execution(assembly, folder, observer, checkpoint_every, watching, by_worker)
    if resuming:
        execution.resume()
    else:
        if execution.leads:
            Folder.create(path, run, environment(device, processes()))
        barrier()
    return execution


def starting_point(assembly: Assembly) -> bytes:
    """A text of what must be equal on all processes at the start: worker 0's weights, layout."""
    weights = hashlib.sha256(assembly.workers.params[0].cpu().view(torch.uint8).numpy().data)
    return assembly.workers.layout.fingerprint() + weights.digest()


def processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1
