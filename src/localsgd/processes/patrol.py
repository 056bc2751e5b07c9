"""The threads behind a heartbeat: post one's own pulse, watch the others, act on a verdict."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import torch.distributed as dist

from localsgd.processes.end import end_process, may_end
from localsgd.processes.pulse import Board, Pulse, State, Verdict
from localsgd.processes.watch import Watch, name
from localsgd.processes.world import World

_WATCHED = 8  # ranks that each process watches: enough for a machine that dies as a whole
_SUSPICIOUS_PULSES = 4  # a silence that is enough once a connection has broken
_READING_ROUNDS = 3  # in which everybody reads the store before it goes with its process
_GRACE_SECONDS = 5.0  # at most, for a main thread that is ending by itself


@dataclass
class Own:
    """What the main thread of this process tells its patrol; plain counters, so that it is cheap.

    Args:
        beats: steps made.
        waits: depth of `waiting()`.
        leaving: the main thread is on its way out.
        failed: why, if it isn't in good order.
        asking: the main thread waits to hear who is lost.
    """

    beats: int = 0
    waits: int = 0
    leaving: bool = False
    failed: Verdict | None = None
    asking: bool = False

    @property
    def state(self) -> State:
        if self.leaving and self.failed is None:
            return State.DONE
        if self.waits or self.asking or self.leaving or not self.beats:
            return State.WAITING
        return State.WORKING


class Patrol:
    """Two threads. One talks to the store, and may block there for good when the machine that
    holds it stops; the other notices that.

    Args:
        world: of more than one process.
        own: written by the main thread, read here.
        limit: seconds within which this process is to stop once another is lost.
    """

    def __init__(self, world: World, own: Own, limit: float) -> None:
        assert world.store is not None
        self._rank, self._size, self._store = world.rank, world.size, world.store
        self._hosts_store = world.rank == 0 and world.store.of_rank_0
        self._own = own
        self._limit = limit
        self._patience = 0.8 * limit
        self._interval = min(1.0, limit / 10)
        self._grace = min(_GRACE_SECONDS, limit / 5)
        self._watch = Watch(self._patience, limit)
        self._pulse = Pulse()
        self._rounds = 0
        self._verdict: Verdict | None = None
        self._found = threading.Event()
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    # Called by the main thread

    def start(self) -> None:
        self._board = Board(self._store, self._limit)
        for run in (self._exchange, self._guard):
            thread = threading.Thread(target=run, name=f"heartbeat{run.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def ask_who_is_lost(self) -> str | None:
        """Wait some seconds for the name behind a broken connection."""
        self._watch.suspect(_SUSPICIOUS_PULSES * self._interval)
        self._own.asking = True
        self._wake.set()
        self._found.wait(2 * _SUSPICIOUS_PULSES * self._interval + 1)
        return self._verdict.text if self._verdict else None

    def finish(self, failed: str | None = None) -> None:
        """Post a last pulse, or why this process failed, and stop."""
        if failed is not None:
            who = name(self._rank, self._pulse)
            self._own.failed = Verdict(f"{who} failed: {failed}", self._rank, failed=True)
        self._own.leaving = True
        self._await_rounds(1)
        if self._hosts_store:
            self._linger()
        self._stopped.set()
        self._wake.set()
        for thread in self._threads:
            thread.join(2 * self._interval)

    def _linger(self) -> None:
        """Keep the store open until the others are done, or have read why this process isn't."""
        others = [rank for rank in range(self._size) if rank != self._rank]
        in_good_order = self._own.failed is None and self._verdict is None
        for _ in range(round(self._limit / self._interval) if in_good_order else _READING_ROUNDS):
            if all(self._watch.is_done(rank) for rank in others):
                return
            time.sleep(self._interval)

    def _await_rounds(self, rounds: int) -> None:
        """Wait for whole exchanges with the store that begin from now on."""
        wanted = self._rounds + rounds + 1  # the one under way may have begun before
        deadline = time.monotonic() + self._grace
        while self._rounds < wanted and time.monotonic() < deadline and not self._is_over():
            self._wake.set()
            time.sleep(0.01)

    def _is_over(self) -> bool:
        return self._found.is_set() or self._stopped.is_set()

    # The thread that talks to the store

    def _exchange(self) -> None:
        while not self._stopped.is_set():
            self._wake.clear()
            try:
                verdict = self._exchange_once()
            except dist.DistError:
                verdict = self._store_is_gone()
                self._stopped.set()
            self._rounds += 1
            if verdict is not None:
                self._act(verdict)
                return
            self._wake.wait(self._interval)

    def _exchange_once(self) -> Verdict | None:
        self._pulse = Pulse(self._pulse.count + 1, self._own.beats, self._own.state)
        self._board.post(self._rank, self._pulse)
        if self._own.failed is not None:
            self._board.judge(self._own.failed)
        watched = self._watched()
        pulses, verdict = self._board.read(watched)
        self._watch.look(time.monotonic())
        for rank in watched:
            self._watch.hear(rank, pulses.get(rank))
        if self._own.leaving:
            return None
        found = self._watch.verdict() if verdict is None else None
        return self._board.judge(found) if found is not None else verdict

    def _watched(self) -> list[int]:
        everybody = self._own.asking or self._hosts_store
        far = self._size - 1 if everybody else min(_WATCHED, self._size - 1)
        return [(self._rank + step) % self._size for step in range(1, far + 1)]

    def _store_is_gone(self) -> Verdict | None:
        """Its end, unless it went with a rank 0 that had finished in good order."""
        if self._own.leaving or (self._store.of_rank_0 and self._watch.is_done(0)):
            return None
        return Verdict(f"{self._storekeeper()} is gone, and the run's store with it")

    def _storekeeper(self) -> str:
        if self._store.of_rank_0:
            return name(0, self._watch.last_pulse(0))
        return f"the launcher at {self._store.host}:{self._store.port}"

    # The thread that notices when the other one is stuck

    def _guard(self) -> None:
        rounds, unanswered, looked_at = self._rounds, 0.0, time.monotonic()
        while not self._stopped.wait(self._interval) and not self._found.is_set():
            now = time.monotonic()
            unanswered += min(now - looked_at, self._patience / 4)
            looked_at = now
            if self._rounds != rounds:
                rounds, unanswered = self._rounds, 0.0
            elif unanswered > self._patience:
                text = f"{self._storekeeper()} keeps the run's store and has not answered for"
                self._act(Verdict(f"{text} {unanswered:.0f} s"))

    # The end

    def _act(self, verdict: Verdict) -> None:
        self._verdict = verdict
        self._found.set()
        if self._own.asking or verdict.failed:
            # The main thread knows, or is just failing for the same reason: it ends by itself.
            time.sleep(self._grace)
            if self._own.leaving:
                return
        if self._hosts_store:
            time.sleep(_READING_ROUNDS * self._interval)
        lost = self._watch.last_pulse(verdict.rank) if verdict.fallen_silent else None
        end_process(verdict, lost if may_end(lost, self._pulse) else None)
