"""Decides from the ranks' statuses which process is lost.

Times come in as numbers and messages go out as texts, so that tests need no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    """What the main thread of a process does."""

    WORKING = "working"  # local steps, each of which counts
    WAITING = "waiting"  # for others, or in something that may take its time
    DONE = "done"


class Status(NamedTuple):
    """A rank's status. It has no time in it, since every reader uses its own clock.

    Args:
        count: number of statuses that the rank has posted.
        step: the last step of its main thread.
        state: what the main thread does.
        who: process and machine, for messages.
    """

    count: int
    step: int | None
    state: State
    who: str


@dataclass
class _Seen:
    status: Status | None
    heard_at: float
    moved_at: float


class Judge:
    """Which of the other processes are alive and make progress.

    A process is lost if it has posted nothing new for `patience` seconds, or if its main thread
    reports to be working and has made no step for that long. Only time in which this process was
    running counts: after a pause of its own it blames nobody.

    Args:
        patience: seconds.
        limit: the limit that the user has set, for the message.
    """

    def __init__(self, patience: float, limit: float) -> None:
        self._idle_patience = self._silence_patience = patience
        self._limit = limit
        self._seen: dict[int, _Seen] = {}
        self._now = 0.0
        self._looked_at: float | None = None

    def suspect(self, patience: float) -> None:
        """From now on a silence of `patience` seconds is enough, since some process has died."""
        self._silence_patience = min(self._silence_patience, patience)

    def look(self, clock: float) -> None:
        """Advances the time to `clock`, in seconds of a monotonic clock."""
        if self._looked_at is not None:
            self._now += min(clock - self._looked_at, self._silence_patience / 4)
        self._looked_at = clock

    def hear(self, rank: int, status: Status | None) -> None:
        """Takes the last status of a rank, or None if it has never posted one."""
        seen = self._seen.get(rank)
        if seen is None or (seen.status is None and status is not None):
            self._seen[rank] = _Seen(status, self._now, self._now)
        elif status is not None and seen.status is not None:
            if status.count != seen.status.count:
                seen.heard_at = self._now
            if status.step != seen.status.step or status.state != State.WORKING:
                seen.moved_at = self._now
            seen.status = status

    def is_done(self, rank: int) -> bool:
        """Whether `rank` has reported that it is leaving after finishing its work."""
        seen = self._seen.get(rank)
        return seen is not None and seen.status is not None and seen.status.state == State.DONE

    def name(self, rank: int) -> str:
        seen = self._seen.get(rank)
        return name(rank, seen.status if seen else None)

    def lost(self) -> str | None:
        """A message that names the first lost process and the reason; `None` if none is lost."""
        return next((text for rank in sorted(self._seen) if (text := self._judge(rank))), None)

    def _judge(self, rank: int) -> str | None:
        seen = self._seen[rank]
        if self.is_done(rank):
            return None
        silent, idle = self._now - seen.heard_at, self._now - seen.moved_at
        status = seen.status
        last = "" if status is None or status.step is None else f", last at step {status.step}"
        if silent > self._silence_patience:
            return f"{self.name(rank)} has not been heard of for {silent:.0f} s{last}"
        if status and status.state == State.WORKING and idle > self._idle_patience:
            return (
                f"{self.name(rank)} has made no step for {idle:.0f} s{last}; steps that take so "
                f"long need a larger --heartbeat-seconds (now {self._limit:g})"
            )
        return None


def name(rank: int, status: Status | None) -> str:
    """A process in a message."""
    return f"rank {rank} ({status.who})" if status else f"rank {rank}"
