"""A heartbeat: when one process dies or hangs, the others stop soon and name it.

Between two agreements, and they may be far apart, no process would notice by itself. So each one
posts a pulse about every second in the store of the run, from a thread, and watches the pulses of
the next few ranks. Whoever finds a rank lost posts a verdict, which all read; what each then does
is say it in one line and exit with status 3, whatever its main thread is stuck in.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch.distributed as dist

from localsgd.collective.broken import first_line, is_broken_connection
from localsgd.errors import PeerLost, UserError
from localsgd.processes.patrol import Own, Patrol
from localsgd.processes.world import World


class Heartbeat:
    """Tell the others that this process makes progress, and stop when one of them does not.

        with joined() as world, Heartbeat(world) as heartbeat:
            for batch in batches:
                step(batch)
                heartbeat.beat()
            with heartbeat.waiting():
                agree()

    Enter it right after joining. Until the first `beat()`, and inside of `waiting()`, the main
    thread may take as long as it likes; else it has to beat within the limit. A body that ends
    normally says goodbye; one that raises tells the others the reason; and one that raises because
    a connection to another process broke raises `PeerLost` with that process's name instead. For
    one process nothing happens at all.

    Args:
        world: as yielded by `joined()`.
        limit_seconds: within how many seconds the others stop. A process counts as lost after four
            fifths of it, and the rest is for telling everybody.

    Raises:
        UserError: the limit isn't positive.
        PeerLost: the store can't be reached; and on leaving, see above.
    """

    def __init__(self, world: World, limit_seconds: float = 30.0) -> None:
        if not limit_seconds > 0:
            raise UserError(f"heartbeat-seconds {limit_seconds:g}: expected more than 0")
        self._own = Own()
        self._patrol = Patrol(world, self._own, limit_seconds) if world.size > 1 else None

    def beat(self) -> None:
        """The main thread has made a step."""
        self._own.beats += 1

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Time in which the main thread makes no step and is right not to: a collective, an
        evaluation, a compilation. Whoever waits for a lost process isn't taken for the lost one."""
        self._own.waits += 1
        try:
            yield
        finally:
            self._own.waits -= 1

    def __enter__(self) -> Self:
        if self._patrol is not None:
            try:
                self._patrol.start()
            except dist.DistError as error:
                raise PeerLost(f"the run's store is gone: {first_line(error)}") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._patrol is None:
            return
        if error is None or _is_orderly(error):
            self._patrol.finish()
        elif is_broken_connection(error):
            text = self._patrol.ask_who_is_lost()
            self._patrol.finish()
            raise PeerLost(text or f"the connection broke: {first_line(error)}") from error
        else:
            self._patrol.finish(failed=_reason(error))


def _is_orderly(error: BaseException) -> bool:
    return isinstance(error, PeerLost) or (isinstance(error, SystemExit) and not error.code)


def _reason(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, SystemExit):
        return f"exit status {error.code}"
    if isinstance(error, UserError):
        return first_line(error)
    return f"{type(error).__name__}: {first_line(error)}"
