"""A heartbeat: if one process dies or hangs, the others stop soon and name it.

Between two syncs, which may be far apart, no process would notice. So each one posts a status about
every second in the run's store, from a thread, and reads those of the next few ranks. A process
that finds a rank lost posts a verdict, which all read; each then prints it in one line and exits
with status 3, even if its main thread is stuck.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch.distributed as dist

from localsgd.errors import PeerLost, UserError
from localsgd.train.launch.board import Board, Verdict
from localsgd.train.launch.ending import end_process
from localsgd.train.launch.judge import Judge, State, Status, name
from localsgd.train.launch.world import World
from localsgd.wire.broken import first_line, is_broken_connection

_OBSERVED = 8  # ranks that each process observes: enough if a whole machine dies
_SUSPICIOUS_ROUNDS = 4  # rounds of silence that are enough once a connection has broken
_READING_ROUNDS = 3  # rounds in which all read the store before its process ends
_GRACE_SECONDS = 5.0  # longest time for a main thread to end by itself


class Heartbeat:
    """Reports this process's progress to the others, and stops it if one of them makes none.

        with joined() as world, Heartbeat(world) as heartbeat:
            for batch in batches:
                step(batch)
                heartbeat.beat()
            with heartbeat.waiting():
                average()

    Enter it right after joining. Until the first `beat()`, and inside `waiting()`, the main thread
    may take any time; otherwise it has to beat within the limit. If the body ends normally, the
    others are told so; if it raises, they are told the reason; if it raises because a connection to
    another process broke, `PeerLost` is raised instead and names that process. A single process
    does nothing.

    Args:
        world: as yielded by `joined()`.
        limit_seconds: time within which all others stop. A process counts as lost after four fifths
            of it; the rest is for informing the others.

    Raises:
        UserError: the limit isn't positive.
        PeerLost: the store can't be reached; and on leaving, see above.
    """

    def __init__(self, world: World, limit_seconds: float = 30.0) -> None:
        if not limit_seconds > 0:
            raise UserError(f"heartbeat-seconds {limit_seconds:g}: expected more than 0")
        self._world = world
        self._limit = limit_seconds
        self._patience = 0.8 * limit_seconds
        self._interval = min(1.0, limit_seconds / 10)
        self._grace = min(_GRACE_SECONDS, limit_seconds / 5)
        self._serves = world.rank == 0 and world.store is not None and world.store.of_rank_0
        self._judge = Judge(self._patience, limit_seconds)
        # Written by the main thread.
        self._step: int | None = None
        self._waits = 0
        self._asking = False  # which process is lost
        self._leaving = False
        self._failed: Verdict | None = None
        # Written by the other two.
        self._status = Status(
            0, None, State.WAITING, f"pid {os.getpid()} on {socket.gethostname()}"
        )
        self._rounds = 0
        self._verdict: Verdict | None = None
        self._found = threading.Event()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    # The main thread

    def beat(self, step: int | None = None) -> None:
        """Records that the main thread has made a step; its number is for messages."""
        self._step = (self._step or 0) + 1 if step is None else step

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Time in which the main thread makes no steps: a collective, an evaluation, a compilation.

        A process that waits for a lost one is not taken for lost itself.
        """
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1

    def __enter__(self) -> Self:
        if self._world.size == 1:
            return self
        try:
            self._board = Board(self._world, self._limit)
        except dist.DistError as error:
            raise PeerLost(f"the run's store is gone: {first_line(error)}") from error
        for run in (self._exchange, self._guard):
            thread = threading.Thread(target=run, name=f"heartbeat{run.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._world.size == 1:
            return
        if error is None or _is_orderly(error):
            self._finish()
        elif is_broken_connection(error):
            text = self._ask_who_is_lost()
            self._finish()
            raise PeerLost(text or f"the connection broke: {first_line(error)}") from error
        else:
            who = name(self._world.rank, self._status)
            self._failed = Verdict(f"{who} failed: {_reason(error)}", of_itself=True)
            self._finish()

    def _ask_who_is_lost(self) -> str | None:
        """Waits some seconds to learn which process a broken connection belonged to."""
        self._judge.suspect(_SUSPICIOUS_ROUNDS * self._interval)
        self._asking = True
        self._wake.set()
        self._found.wait(2 * _SUSPICIOUS_ROUNDS * self._interval + 1)
        return self._verdict.text if self._verdict else None

    def _finish(self) -> None:
        """Posts a last status, or why this process failed, and stops."""
        self._leaving = True
        wanted = self._rounds + 2  # the current one may have begun before
        deadline = time.monotonic() + self._grace
        while self._rounds < wanted and time.monotonic() < deadline and not self._is_over():
            self._wake.set()
            time.sleep(0.01)
        if self._serves:
            self._keep_serving()
        self._stopped.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(2 * self._interval)

    def _is_over(self) -> bool:
        return self._found.is_set() or self._stopped.is_set()

    def _keep_serving(self) -> None:
        """Waits until the others are done, or have read why this process failed."""
        in_good_order = self._failed is None and self._verdict is None
        for _ in range(round(self._limit / self._interval) if in_good_order else _READING_ROUNDS):
            if all(self._judge.is_done(rank) for rank in range(1, self._world.size)):
                return
            time.sleep(self._interval)

    # The thread that talks to the store, and may block there for ever

    def _exchange(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                verdict = self._exchange_once()
            except dist.DistError:
                verdict = self._store_is_gone()
                self._stopped.set()
            except UserError as error:  # All read that verdict, which is none.
                verdict = Verdict(str(error))
            self._rounds += 1
            if verdict is not None:
                self._act(verdict)
                return
            self._wake.wait(self._interval)

    def _exchange_once(self) -> Verdict | None:
        rank, size = self._world.rank, self._world.size
        self._status = Status(self._status.count + 1, self._step, self._state(), self._status.who)
        self._board.post(rank, self._status)
        if self._failed is not None:
            self._board.judge(self._failed)
        everybody = self._asking or self._serves
        far = size - 1 if everybody else min(_OBSERVED, size - 1)
        observed = [(rank + step) % size for step in range(1, far + 1)]
        try:
            found, verdict = self._board.read(observed)
        except UserError as error:
            return self._board.judge(Verdict(str(error)))
        self._judge.look(time.monotonic())
        for other in observed:
            self._judge.hear(other, found.get(other))
        if self._leaving:
            return None
        lost = self._judge.lost() if verdict is None else None
        return self._board.judge(Verdict(lost)) if lost is not None else verdict

    def _state(self) -> State:
        if self._leaving and self._failed is None:
            return State.DONE
        if self._waits or self._asking or self._leaving or self._step is None:
            return State.WAITING
        return State.WORKING

    def _store_is_gone(self) -> Verdict | None:
        """The verdict that the store is gone, unless rank 0 held it and had finished its work."""
        assert self._world.store is not None
        if self._leaving or (self._world.store.of_rank_0 and self._judge.is_done(0)):
            return None
        return Verdict(f"{self._server()} is gone, and the run's store with it")

    def _server(self) -> str:
        store = self._world.store
        assert store is not None
        return self._judge.name(0) if store.of_rank_0 else f"the launcher at {store}"

    # The thread that notices if the other one is stuck

    def _guard(self) -> None:
        rounds, unanswered, looked_at = self._rounds, 0.0, time.monotonic()
        while not self._stopped.wait(self._interval) and not self._found.is_set():
            now = time.monotonic()
            unanswered += min(now - looked_at, self._patience / 4)
            looked_at = now
            if self._rounds != rounds:
                rounds, unanswered = self._rounds, 0.0
            elif unanswered > self._patience:
                text = f"{self._server()} keeps the run's store and has not answered for"
                self._act(Verdict(f"{text} {unanswered:.0f} s"))

    # Either of them

    def _act(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._found.set()
        if self._asking or verdict.of_itself:
            # The main thread knows, or is failing for the same reason: it ends by itself.
            time.sleep(self._grace)
            if self._leaving:
                return
        if self._serves:
            time.sleep(_READING_ROUNDS * self._interval)
        end_process(verdict.text)


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
