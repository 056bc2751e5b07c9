"""Judge from pulses who is lost: times come in as numbers, verdicts go out, no more happens."""

from __future__ import annotations

from dataclasses import dataclass

from localsgd.processes.pulse import Pulse, State, Verdict


@dataclass
class _Seen:
    pulse: Pulse | None
    heard_at: float
    beat_at: float


class Watch:
    """Who of the other processes still lives and works.

    A process is lost when its pulse has not changed for `patience` seconds, or when its main thread
    claims to be working and has finished nothing for that long. The seconds are those in which this
    process was looking: one that was stopped itself for a while blames nobody for it.

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
        """There is evidence that somebody has died: a silence of `patience` seconds is enough."""
        self._silence_patience = min(self._silence_patience, patience)

    def look(self, clock: float) -> None:
        """Let time pass up to `clock`, in seconds of a clock that never goes back."""
        if self._looked_at is not None:
            self._now += min(clock - self._looked_at, self._silence_patience / 4)
        self._looked_at = clock

    def hear(self, rank: int, pulse: Pulse | None) -> None:
        """Take the last pulse of a rank, or None where it has never given one."""
        last = self._seen.get(rank)
        if last is None or (last.pulse is None and pulse is not None):
            self._seen[rank] = _Seen(pulse, self._now, self._now)
            return
        if pulse is None or last.pulse is None:
            return
        if pulse.count != last.pulse.count:
            last.heard_at = self._now
        if pulse.beats != last.pulse.beats or pulse.state != State.WORKING:
            last.beat_at = self._now
        last.pulse = pulse

    def is_done(self, rank: int) -> bool:
        """Whether `rank` has said that it is leaving in good order."""
        seen = self._seen.get(rank)
        return seen is not None and seen.pulse is not None and seen.pulse.state == State.DONE

    def last_pulse(self, rank: int | None) -> Pulse | None:
        seen = self._seen.get(rank) if rank is not None else None
        return seen.pulse if seen else None

    def verdict(self) -> Verdict | None:
        """The first process that is lost, if one is."""
        return next(
            (v for rank in sorted(self._seen) if (v := self._judge(rank, self._seen[rank]))), None
        )

    def _judge(self, rank: int, seen: _Seen) -> Verdict | None:
        if self.is_done(rank):
            return None
        silent, idle = self._now - seen.heard_at, self._now - seen.beat_at
        who = name(rank, seen.pulse)
        if silent > self._silence_patience:
            text = f"{who} has not been heard of for {silent:.0f} s"
            return Verdict(text, rank, fallen_silent=True)
        if seen.pulse and seen.pulse.state == State.WORKING and idle > self._idle_patience:
            return Verdict(
                f"{who} has made no step for {idle:.0f} s; steps that take so long need a larger "
                f"--heartbeat-seconds (now {self._limit:g})",
                rank,
            )
        return None


def name(rank: int, pulse: Pulse | None) -> str:
    """A process in a message."""
    return f"rank {rank} (pid {pulse.pid} on {pulse.host})" if pulse else f"rank {rank}"
