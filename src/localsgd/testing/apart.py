"""Members in threads of one process, each with a collective of its own, as if in processes.

Shapes: g groups · m members hosted by a thread · M members · n, c scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier, BrokenBarrierError
from typing import TypeVar

import torch
from torch import Tensor

from localsgd.wire import Collective, Pending
from localsgd.wire.in_process import sum_members

T = TypeVar("T")
SECONDS = 60.0
"""A thread waits for so long for the others."""


class Meeting:
    """Hands every thread what all have brought."""

    def __init__(self, threads: int) -> None:
        self.barrier = Barrier(threads, timeout=SECONDS)
        self._brought: list[Tensor] = [torch.empty(0)] * threads

    def all(self, thread: int, x: Tensor) -> Tensor:
        """`[g, M, ...]` of the `x [g, m, ...]` of all threads."""
        self._brought[thread] = x.clone()
        self.barrier.wait()
        together = torch.cat(self._brought, 1)
        self.barrier.wait()
        return together


@dataclass(frozen=True)
class Threaded:
    """The collective of one of several threads, each of which hosts as many members."""

    meeting: Meeting
    thread: int
    hosted: int
    members: int

    def sum(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(x[:, 0].copy_(sum_members(self.meeting.all(self.thread, x))))

    def gather(self, x: Tensor) -> Pending[Tensor]:
        return Pending.done(self.meeting.all(self.thread, x))

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        first = self.thread * self.hosted
        received = self.meeting.all(self.thread, x).transpose(1, 2)
        return Pending.done(received[:, first : first + self.hosted].contiguous())


def in_threads(threads: int, hosted: int, work: Callable[[int, Collective], T]) -> list[T]:
    """What `work(thread, collective)` gives in each thread; the first error of any is raised."""
    meeting = Meeting(threads)

    def one(thread: int) -> T:
        try:
            with torch.no_grad():
                return work(thread, Threaded(meeting, thread, hosted, threads * hosted))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(one, thread) for thread in range(threads)]
    errors = [future.exception() for future in futures]
    own = [error for error in errors if error and not isinstance(error, BrokenBarrierError)]
    for error in own or filter(None, errors):
        raise error
    return [future.result() for future in futures]
