"""Tells the other ranks what this rank does, over the rendezvous store.

A rank that waits can then say for which rank, and ranks that make different calls are noticed, such
as an evaluation by rank 0 alone. Two rules keep their tensors from being mixed up, and cost nothing
while all is well:

- A user's call (`meet`) begins with a meeting: every rank writes into the store what it is about to
  do and after which step, and no tensor is sent before all have written the same. Meetings have
  their own process group, so that no sync can take part by mistake.
- A step's collective (`wait`) starts at once. A rank that has waited for a second writes so into
  the store and reads what the others do. If another rank waits for it in a call that it can't
  reach, all end with an error.

So a sync needs no label in its rows: bits, size and dtype stay as they are.
"""

from __future__ import annotations

import json
import time
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist

from localsgd.basics.messages import one_line, read_message, read_messages
from localsgd.errors import PeerLost, UserError
from localsgd.wire.broken import is_late

SLICE = timedelta(seconds=1)
"""Time after which a wait looks at the other ranks, again and again."""
TOLD_SECONDS = 10.0
"""Shortest time between two reports of a rank's step."""
PATIENCE_SECONDS = 60.0
"""Time after which a waiting rank warns for whom it waits."""
MARKS = 64
"""Marks of a rank that stay in the store: more than the syncs by which others may be behind."""
GRACE_SECONDS = 2.0
"""Time within which all ranks that notice a loss have reported it."""


class Event(NamedTuple):
    """Something that a rank does together with others.

    Args:
        what: a description for messages.
        step: the number of steps taken, the current one included.
        by_hand: whether it is a user's call, which all ranks must make.
    """

    what: str
    step: int
    by_hand: bool = False

    def __str__(self) -> str:
        return f"in {self.what} at step {self.step}"


class Seen(NamedTuple):
    """The last report of a rank.

    Args:
        event: what it does.
        waits: whether it waits there for others.
        ranks: the ranks that it waits for; all if empty.
        meeting: the number of the last meeting that it has reached.
        lost: whether its collective has failed there.
    """

    event: Event
    waits: bool = False
    ranks: Sequence[int] = ()
    meeting: int = 0
    lost: bool = False

    def waits_for(self, rank: int) -> bool:
        return self.waits and (not self.ranks or rank in self.ranks)


@dataclass
class Waiting:
    """A wait that has taken longer than usual."""

    event: Event
    ranks: Sequence[int] = ()
    start: float = field(default_factory=time.monotonic)
    said: bool = False


class Presence:
    """Writes reports of this rank into the store, and reads those of others.

    Args:
        store: shared by all ranks.
        rank: of this process.
        processes: the number of processes.
        limit: the longest time to wait for another rank.

    Attributes:
        event: the event that collectives started now belong to.
        peers: the ranks that average with this one.
    """

    def __init__(self, store: dist.Store, rank: int, processes: int, limit: timedelta) -> None:
        self._store = dist.PrefixStore("localsgd", store)
        self._own = self._store
        self.rank = rank
        self.processes = processes
        self.limit = limit.total_seconds()
        self.event = Event("the start", 0)
        self.peers: Sequence[int] = range(processes)
        self._group: dist.ProcessGroup | None = None
        self._apart: dist.ProcessGroup | None = None
        self._release: weakref.finalize | None = None
        self._failed: Waiting | None = None
        self._meeting = 0
        self._told_at = 0.0
        self._numbered = 0
        self._marks: dict[int, str] = {}  # that have been read last
        self._marked: deque[str] = deque()  # places of own marks, the last ones

    @staticmethod
    def of_processes(limit: timedelta) -> Presence | None:
        """The presence of this rank of `torch.distributed`; `None` if it is the only one."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        store = dist.distributed_c10d._get_default_store()
        return Presence(store, dist.get_rank(), dist.get_world_size(), limit)

    def owns(self, groups: Iterable[object]) -> None:
        """Ends these process groups, and its own, when this presence is deleted."""
        self._release = weakref.finalize(self, _end, self._group, groups)
        self._release.atexit = False

    def _keep_groups(self) -> None:
        """A collective may be under way for ever, and the end of its group would wait for it: they
        stay, also when all of `torch.distributed` has been ended.
        """
        if self._release is not None and (released := self._release.detach()) is not None:
            _kept.append(released[2])

    def apart(self) -> dist.ProcessGroup:
        """A gloo group for work in the background, which no other call may use. All ranks call it
        together; it is made once.
        """
        if self._apart is None:
            group = dist.new_group(timeout=timedelta(seconds=self.limit), backend="gloo")
            assert isinstance(group, dist.ProcessGroup)
            self._apart = group
            weakref.finalize(self, _end, group, ()).atexit = False
        return self._apart

    # What a user calls.

    def open(self, event: Event, detail: str = "") -> list[str]:
        """Holds the first meeting, of all ranks that make this optimizer, in the store alone.

        Returns the details that they give, by rank.
        """
        details = self.meet(event, detail)
        self._own = dist.PrefixStore(str(self._store.add(f"meetings/{self.rank}", 0)), self._store)
        group = dist.new_group(timeout=timedelta(seconds=self.limit), backend="gloo")
        self._group = group if isinstance(group, dist.ProcessGroup) else None
        return details

    def meet(self, event: Event, detail: str = "") -> list[str]:
        """Waits until all ranks are in `event`; returns the details that they give, by rank.

        Raises:
            UserError: on all ranks, if some are in another event.
            PeerLost: some have not come within the limit.
        """
        self.event = event
        self._meeting = number = self._store.add(f"meetings/{self.rank}", 1)
        place = f"meeting/{number}"
        self._store.set(f"{place}/{self.rank}", json.dumps([event, detail]))
        if self._store.add(f"{place}/arrived", 1) == self.processes:
            self._store.set(f"{place}/complete", "")
        if self._group is None:
            self._until_complete(place, event)
        else:
            self._until_all_are_here(self._group, place, event)
        if self._store.check([f"{place}/ended"]):
            raise PeerLost(one_line(self._store.get(f"{place}/ended")))
        keys = [f"{place}/{rank}" for rank in range(self.processes)]
        found = read_messages(self._store.multi_get(keys), tuple[Event, str])
        events = {rank: other for rank, (other, _) in enumerate(found)}
        if len(set(events.values())) > 1:
            raise UserError(apart(events))
        self._forget(number - 1)  # All ranks have come here, so they have read the last one.
        return [detail for _, detail in found]

    def _until_all_are_here(self, group: dist.ProcessGroup, place: str, event: Event) -> None:
        try:
            self.wait(group.allreduce([torch.zeros(1)]), event, group)
        except RuntimeError as error:
            if not is_late(error):
                raise
            self._give_up(place, event)
        if self._own.check(["parted"]):  # The others have come to let this one go.
            self._part(one_line(self._own.get("parted")), event)

    def _until_complete(self, place: str, event: Event) -> None:
        waiting = Waiting(event)
        pause, looked = 0.0002, waiting.start
        # A store's own wait would print a warning whenever it ends without the key.
        while not self._store.check([f"{place}/complete"]):
            time.sleep(pause)
            pause = min(1.3 * pause, 0.1)
            now = time.monotonic()
            if now - waiting.start > self.limit:
                self._give_up(place, event)
            if now - looked > SLICE.total_seconds():
                self._look_around(waiting)
                looked = now

    def _give_up(self, place: str, event: Event) -> None:
        ranks = range(self.processes)
        missing = [rank for rank in ranks if not self._store.check([f"{place}/{rank}"])]
        said = (
            f"{named(missing)} did not come to {event.what} within `timeout` ({self.limit:g} s"
            f"{self._last_seen(missing)}); all ranks must call it{_why(event)}"
        )
        self._store.set(f"{place}/ended", f"rank {self.rank} has stopped waiting: {said}")
        raise PeerLost(said)

    def _forget(self, number: int) -> None:
        if number > 0:
            self._store.delete_key(f"meeting/{number}/{self.rank}")
            if self.rank == 0:
                for key in ("arrived", "complete"):
                    self._store.delete_key(f"meeting/{number}/{key}")

    # What a step does.

    def passes(self, event: Event) -> None:
        """Records that this rank has reached `event`, and reports it once in a while."""
        self.event = event
        now = time.monotonic()
        if now - self._told_at > TOLD_SECONDS:
            self._told_at = now
            self._tell(Seen(event, meeting=self._meeting))

    def wait(self, work: dist.Work, event: Event, group: dist.ProcessGroup) -> None:
        """Waits for `work`, and looks at the other ranks if it takes long."""
        waiting: Waiting | None = None
        while True:
            try:
                work.wait(SLICE)
                return
            except RuntimeError as error:
                waiting = waiting or Waiting(event, self._ranks(group))
                if "Operation timed out!" not in str(error):
                    self._failed = waiting
                    raise
            self._look_around(waiting)

    def begins(self, event: Event, group: dist.ProcessGroup) -> None:
        """Reports a wait that can't be interrupted to look at the others, before it begins."""
        self._failed = Waiting(event, self._ranks(group))  # if it fails
        self._tell(Seen(event, True, self._failed.ranks, self._meeting))

    def numbered(self) -> int:
        """A number for each of several that share this presence, in the order in which they ask."""
        self._numbered += 1
        return self._numbered

    def leave(self, name: str, text: str) -> None:
        """Leaves a text for others to read, in place of the last one of this name."""
        self._own.set(f"{name}/{self.rank}", text)

    def left(self, name: str, rank: int) -> bytes | None:
        """What a rank has left."""
        key = f"{name}/{rank}"
        return self._own.get(key) if self._own.check([key]) else None

    def mark(self) -> None:
        """Marks this rank in the current event."""
        place = f"marked/{self.event}/{self.rank}"
        self._own.set(place, "")
        self._own.set(f"marked/{self.rank}", str(self.event))
        if place not in self._marked:
            self._marked.append(place)
        if len(self._marked) > MARKS:
            self._own.delete_key(self._marked.popleft())

    def marked(self) -> list[int]:
        """The peers that are set apart in what has just been done; those that have last been set
        apart in anything, where it began with an earlier event, as a late mean does.
        """
        ranks = self.peers
        place = f"marked/{self.event}"
        now = [rank for rank in ranks if self._own.check([f"{place}/{rank}"])]
        self._marks |= dict.fromkeys(now, str(self.event))
        return now or [rank for rank in ranks if self._untold(rank)]

    def _untold(self, rank: int) -> bool:
        if not self._own.check([f"marked/{rank}"]):
            return False
        last = one_line(self._own.get(f"marked/{rank}"))
        before, self._marks[rank] = self._marks.get(rank), last
        return last != before

    def _ranks(self, group: dist.ProcessGroup) -> Sequence[int]:
        ranks = dist.get_process_group_ranks(group)
        return () if len(ranks) == self.processes else ranks

    def _look_around(self, waiting: Waiting) -> None:
        own = Seen(waiting.event, True, waiting.ranks, self._meeting)
        self._tell(own)
        if self._own.check(["parted"]):
            self._part(one_line(self._own.get("parted")), waiting.event)
        try:
            seen = self._read(waiting.ranks)
        except UserError as error:
            self._part(str(error), waiting.event)
        waits = {self.rank: own.event} | {rank: s.event for rank, s in seen.items() if s.waits}
        for other in seen.values():
            if other.waits_for(self.rank) and (never_met(own, other) or never_met(other, own)):
                self._part(apart(waits), own.event)
        waited = time.monotonic() - waiting.start
        if waiting.said or waited < PATIENCE_SECONDS:
            return
        waiting.said = True
        there = {self.rank, *(r for r, s in seen.items() if s.waits and s.event == own.event)}
        missing = sorted(set(waiting.ranks or range(self.processes)) - there)
        if missing and self.rank == min(there):
            warnings.warn(
                f"rank {self.rank} has waited for {waited:.0f} s {own.event}: "
                f"{named(missing)} did not come yet{self._last_seen(missing)}{_why(own.event)}",
                stacklevel=2,
            )

    def _part(self, said: str, own: Event) -> NoReturn:
        """Ends the wait here, and on all ranks that look at the others."""
        self._keep_groups()
        self._own.set("parted", said)
        if self._group is not None and not own.by_hand:
            # Ranks that wait in a meeting are released, so that their programs can end. That closes
            # their connections, and so ends the collectives of this rank.
            self._group.allreduce([torch.zeros(1)])
        raise UserError(said)

    # After a collective has failed.

    def who_is_lost(self, late: bool) -> str:
        """A message that names the ranks that have not noticed the loss, and so are its cause."""
        self._keep_groups()
        failed = self._failed or Waiting(self.event)
        try:
            self._tell(Seen(failed.event, True, failed.ranks, self._meeting, lost=True))
            ranks = [r for r in failed.ranks or range(self.processes) if r != self.rank]
            end = time.monotonic() + GRACE_SECONDS
            seen = self._read(ranks)
            while time.monotonic() < end and not all(r in seen and seen[r].lost for r in ranks):
                time.sleep(0.05)
                seen = self._read(ranks)
            missing = [r for r in ranks if r not in seen or not seen[r].lost]
            if missing:
                did = "did not answer within `timeout`" if late else "ended"
                return f"{named(missing)} {did}{self._last_seen(missing)}"
            events = {self.rank: failed.event} | {r: seen[r].event for r in ranks}
            if len(set(events.values())) > 1:
                return apart(events)
        except UserError as error:  # of a report
            return str(error)
        except RuntimeError:  # The store has gone.
            pass
        return "another rank did not answer within `timeout`" if late else "another rank ended"

    def _tell(self, seen: Seen) -> None:
        self._own.set(str(self.rank), json.dumps(seen))

    def _read(self, ranks: Sequence[int]) -> dict[int, Seen]:
        """The last reports of others, by rank."""
        found = {}
        for rank in ranks or range(self.processes):
            if rank != self.rank and self._own.check([str(rank)]):
                found[rank] = read_message(self._own.get(str(rank)), Seen, f"rank {rank}")
        return found

    def _last_seen(self, ranks: Sequence[int]) -> str:
        seen = self._read(ranks)
        # Who waits has reported just that; else steps are reported once in a while.
        found = {r: "" if seen[r].waits else " or later" for r in ranks[:8] if r in seen}
        steps = [f"rank {rank} {seen[rank].event}{later}" for rank, later in found.items()]
        return f"; last seen: {', '.join(steps)}" if steps else ""


_kept: list[object] = []
"""Groups that are never ended."""


def _end(own: object, groups: Iterable[object]) -> None:
    for group in (own, *groups):
        if isinstance(group, dist.ProcessGroup):
            with suppress(ValueError, RuntimeError, AssertionError):  # The user has ended all.
                dist.destroy_process_group(group)


def never_met(called: Seen, stepped: Seen) -> bool:
    """Whether one rank waits in a meeting that the other, in a later step, has not reached."""
    return (
        called.event.by_hand
        and not stepped.event.by_hand
        and called.meeting > stepped.meeting
        and stepped.event.step > called.event.step
    )


def apart(events: Mapping[int, Event]) -> str:
    """A message that says what each rank does, and what to do about it."""
    by_event: dict[Event, list[int]] = {}
    for rank, event in sorted(events.items()):
        by_event.setdefault(event, []).append(rank)
    found = [f"{named(ranks)} {_are(ranks)} {event}" for event, ranks in by_event.items()]
    return (
        f"{', '.join(found)}; all ranks must make the same calls after the same number of steps "
        "(if they have unequal numbers of batches, cut epochs to the shortest, for example by "
        "DistributedSampler(drop_last=True))"
    )


def _why(event: Event) -> str:
    """What may keep others from a call, as nothing here sees what else a program waits for."""
    if not event.by_hand:
        return ""
    return (
        f"; if they wait in a collective of the program's own, such as dist.barrier(), call "
        f"{event.what} on all ranks before it"
    )


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 1, 2`."""
    shown = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
