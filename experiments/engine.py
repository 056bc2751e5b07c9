"""Runs jobs in this process or several, and stores each result as soon as it is done.

A job that cannot be done, for want of its data, is named with the reason, and the others go on.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.store import Store, canonical
from experiments.study import Job, Record, Scale
from localsgd.basics.shards import shard_of
from localsgd.basics.units import duration
from localsgd.errors import UserError
from localsgd.train.engine.execution import Interrupted
from localsgd.train.launch import end_with

THREADS = "OMP_NUM_THREADS"
LINE_SECONDS = 60.0
"""Least time between two lines of progress where there is no terminal."""
KILLED = "its process was killed, though nothing ran beside it; was there enough memory?"


@dataclass(frozen=True)
class Place:
    """The environment of jobs.

    Args:
        scratch: for checkpoints and workers that runs share; may be removed at any time.
        data_dir: where data sets lie; the usual places if not given.
        records: where jobs keep what they make; nowhere if not given.
    """

    scratch: Path
    data_dir: Path | None = None
    records: Store | None = None

    def once(self, job: Job, make: Callable[[], Record]) -> Record:
        """The job's record, as `Workplace.once` specifies."""
        if self.records is None:
            return make()
        known = _found(job, self.records)
        if known is not None:
            return known
        began = time.perf_counter()
        record = make()
        if self.records.of(job) is None:  # `make` may have kept it itself
            self.records.add(job, record, time.perf_counter() - began)
        return record


@dataclass
class Outcome:
    """The outcome of some jobs."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Failures: the title of a job that failed, and the reason."""

    def fail(self, job: Job, error: BaseException) -> None:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, UserError):
            reason = str(error)
        elif isinstance(error, BrokenProcessPool):
            reason = KILLED
        if reason not in self.failed.values():
            self.failed[job.title] = reason


def distinct(jobs: Iterable[Job]) -> list[Job]:
    """Jobs of equal keys once, in order."""
    found: dict[str, Job] = {}
    for job in jobs:
        found.setdefault(canonical(job.key), job)
    return list(found.values())


def share_by_key(jobs: Iterable[Job], text: str) -> list[Job]:
    """A share of jobs that become known, and done, one after the other: a job is in the same share
    whatever is beside it.
    """
    index, count = shard_of(text)
    return [job for job in jobs if _number(job) % count == index - 1]


def _number(job: Job) -> int:
    """The same on every machine."""
    return int.from_bytes(hashlib.sha256(canonical(job.key).encode()).digest()[:8])


def carry_out(
    jobs: Sequence[Job], store: Store, place: Place, processes: int, console: Console
) -> Outcome:
    """Does what has not been done yet. Interrupted, it keeps all that is finished.

    Raises:
        KeyboardInterrupt: it was interrupted.
    """
    due = [job for job in jobs if store.of(job) is None]
    outcome = Outcome()
    if not due:
        return outcome
    lines = _Lines(console, len(due))
    with _progress(console) as progress:
        bar = progress.add_task("", total=len(due))

        def told(job: Job, result: Callable[[], Record]) -> None:
            try:
                record = result()
                if _found(job, store) is None:
                    store.add(job, record)
                outcome.done += 1
            except (Interrupted, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            except Exception as error:
                outcome.fail(job, error)
            progress.advance(bar)
            lines.ended(job)

        def begun(titles: Sequence[str]) -> None:
            progress.update(bar, description="; ".join(titles))

        work = _one_by_one if processes == 1 else _together
        for alone, at_once in ((False, processes), (True, 1)):
            some = [job for job in due if is_alone(job) == alone]
            if some:
                work(some, store, place, at_once, told, begun)
    return outcome


def is_alone(job: Job) -> bool:
    """Whether it is a measurement of time, beside which nothing else may run."""
    return getattr(job, "alone", False)


Told = Callable[[Job, Callable[[], Record]], None]
Begun = Callable[[Sequence[str]], None]


def _one_by_one(
    due: Sequence[Job], store: Store, place: Place, processes: int, told: Told, begun: Begun
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    here = replace(place, records=store)
    try:
        for job in due:
            begun([job.title])
            told(job, lambda job=job: here.once(job, lambda: job.carry_out(here)))
    finally:
        torch.set_num_threads(before)


def _together(
    due: Sequence[Job], store: Store, place: Place, processes: int, told: Told, begun: Begun
) -> None:
    """A process that is killed takes the jobs beside it along; these are done again, one by one."""
    before = os.environ.get(THREADS)
    os.environ[THREADS] = "1"  # read by the processes when they start
    pool = _pool(min(processes, len(due)))
    waiting, running, lost = list(due), dict[Future[Record], Job](), list[Job]()
    try:
        while waiting or running or lost:
            if not waiting and not running:  # which one it was is seen where each runs alone
                waiting, lost, processes = lost, [], 1
            while waiting and len(running) < processes:
                job = waiting.pop(0)
                if (record := _found(job, store)) is not None:
                    told(job, lambda record=record: record)
                    continue
                work = job, place, store.scale, store.folder.parent
                try:
                    future = pool.submit(_carried_out, *work)
                except BrokenProcessPool:
                    pool = _pool(min(processes, len(due)))
                    future = pool.submit(_carried_out, *work)
                running[future] = job
            begun([job.title for job in running.values()])
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in sorted(ended, key=_stopped):
                job = running.pop(future)
                if processes > 1 and isinstance(future.exception(), BrokenProcessPool):
                    lost.append(job)
                else:
                    told(job, future.result)
    except KeyboardInterrupt:
        pool.shutdown(cancel_futures=True)
        for future, job in running.items():
            if not future.cancelled() and not _stopped(future):
                told(job, future.result)
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before


def _pool(processes: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(processes, get_context("spawn"), _begin, (os.getpid(),))


def _stopped(future: Future[Record]) -> bool:
    """Whether a job that has ended was interrupted."""
    return isinstance(future.exception(), Interrupted)


def _found(job: Job, store: Store) -> Record | None:
    """The job's record, also if another command has made it since this one began."""
    store.refresh()
    return store.of(job)


def _begin(parent: int) -> None:
    """What a process does before its first job: it is not to outlive the command."""
    end_with(parent)
    _deaf()


def _deaf() -> None:
    """Between jobs Ctrl-C is for the parent alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _carried_out(job: Job, place: Place, scale: Scale, folder: Path) -> Record:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here = replace(place, records=Store(scale, folder))
    try:
        return here.once(job, lambda: job.carry_out(here))
    except KeyboardInterrupt:
        raise Interrupted(job.title) from None
    finally:
        _deaf()


def _progress(console: Console) -> Progress:
    return Progress(
        BarColumn(24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        disable=not console.is_terminal,
    )


class _Lines:
    """Progress in lines where there is no terminal, at most one a minute."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._ended = 0
        self._began = self._said = time.monotonic()

    def ended(self, job: Job) -> None:
        self._ended += 1
        now = time.monotonic()
        if self._console.is_terminal or now - self._said < LINE_SECONDS:
            return
        self._said = now
        text = f"{self._ended} of {self._total} ended after {duration(now - self._began)}"
        self._console.print(f"{text}, the last: {job.title}", markup=False, soft_wrap=True)
