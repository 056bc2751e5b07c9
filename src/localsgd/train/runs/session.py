"""The processes of a program that trains runs: joined for the first one, left when it ends."""

from __future__ import annotations

import atexit
from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import torch.distributed as dist

from localsgd.errors import UserError
from localsgd.train.launch import Heartbeat, World, find_world, joined


class _Session:
    """What is held from one run to the next: a store can't be joined twice."""

    def __init__(self, device: str, timeout_seconds: float, heartbeat_seconds: float) -> None:
        self._held = ExitStack()
        self.world = self._held.enter_context(joined(device, timeout_seconds=timeout_seconds))
        self.heartbeat = self._held.enter_context(Heartbeat(self.world, heartbeat_seconds))
        self._between = ExitStack()
        self._pause()
        atexit.register(self._held.close)

    def _pause(self) -> None:
        self._between.enter_context(self.heartbeat.waiting())

    @contextmanager
    def training(self) -> Generator[None]:
        """A program may take any time between two runs, and only there."""
        self._between.close()
        try:
            with self._left_if_it_fails():
                yield
        finally:
            self._pause()

    @contextmanager
    def _left_if_it_fails(self) -> Generator[None]:
        """The other processes are told why."""
        with ExitStack() as held:
            held.push(self._held.__exit__)
            yield
            held.pop_all()


_sessions: list[_Session] = []


@contextmanager
def session(
    device: str, timeout_seconds: float, heartbeat_seconds: float
) -> Generator[tuple[World, Heartbeat]]:
    """This process among those of torchrun or srun, and its heartbeat.

    Raises:
        UserError: somebody else has joined them, or an earlier run has failed.
    """
    if find_world().size == 1:
        with joined(device) as world, Heartbeat(world) as heartbeat:
            yield world, heartbeat
        return
    if not _sessions:
        if dist.is_initialized():
            raise UserError(
                "torch.distributed is initialised already; leave joining the processes of torchrun "
                "or srun to train()"
            )
        _sessions.append(_Session(device, timeout_seconds, heartbeat_seconds))
    [held] = _sessions
    if not dist.is_initialized():
        raise UserError(
            "an earlier run of this program was cut off, and its processes have parted; start the "
            "program again, and the same calls go on"
        )
    with held.training():
        yield held.world, held.heartbeat
