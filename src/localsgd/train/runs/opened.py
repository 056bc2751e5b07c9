"""A run in its folder, ready to train, as one of its processes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import msgspec

from localsgd.train.config.blame import naming_parts
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import NAMED, Assembly, Own
from localsgd.train.engine.execution import Execution, prepare
from localsgd.train.engine.observer import Observer, Observers
from localsgd.train.engine.run_folder import locked
from localsgd.train.engine.watching import watch as watching_of
from localsgd.train.engine.watching import watched
from localsgd.train.launch import Heartbeat, World, check_same


@contextmanager
def opened(
    wanted: Run,
    task: Task,
    path: Path,
    observer: Observer,
    *,
    world: World,
    heartbeat: Heartbeat,
    resuming: bool,
    timeout: timedelta,
    checkpoint_every: int = 1,
    watch: str = "",
    by_worker: bool = False,
    own: Own = NAMED,
) -> Generator[Execution]:
    """The run, ready to train; inside, no other process can write its folder.

    Args:
        wanted: completed.
        task: its data.
        path: of its folder, which is new unless the run is resumed.
        observer: watches it, beside the heartbeat.
        world: the processes that have been joined.
        heartbeat: tells the others of this one.
        resuming: goes on with the run in that folder.
        timeout: of a collective.
        checkpoint_every: evaluations from one checkpoint to the next.
        watch: what is measured during training; as before if empty.
        by_worker: evaluations look at the workers' own models too, and at their drift.
        own: parts that are given as objects.
    """
    check_same("configuration", f"{_lines(wanted)}\nout={path}\nwatch={watch}\n{by_worker=}")
    leads = world.rank == 0
    with naming_parts(wanted), ExitStack() as held:
        if leads and resuming:
            held.enter_context(locked(path))
        with heartbeat.waiting():
            execution = prepare(
                wanted,
                task,
                path,
                Observers(Beating(heartbeat), observer),
                resuming=resuming,
                local_rank=world.local_rank,
                timeout=timeout,
                waiting=heartbeat.waiting,
                checkpoint_every=checkpoint_every,
                watching=watching_of(watch or watched(path), path),
                by_worker=by_worker,
                own=own,
            )
        if leads and not resuming:  # the folder is there now
            held.enter_context(locked(path))
        yield execution


class Beating(Observer):
    """Sends a heartbeat at every step.

    The first step counts as a pause, since it may compile the model.
    """

    def __init__(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat
        self._until_first_step = ExitStack()

    def started(self, assembly: Assembly) -> None:
        self._until_first_step.enter_context(self._heartbeat.waiting())

    def stepped(self, assembly: Assembly) -> None:
        self._until_first_step.close()
        self._heartbeat.beat(assembly.workers.step)

    @contextmanager
    def pausing(self, what: str) -> Generator[None]:
        with self._heartbeat.waiting():
            yield


def _lines(wanted: Run) -> str:
    return "\n".join(f"{key}={value}" for key, value in msgspec.to_builtins(wanted).items())
