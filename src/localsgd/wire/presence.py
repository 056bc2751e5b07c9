"""Where each rank is, told over the rendezvous store, so that a rank that waits can say for whom.

Ranks part when one of them makes a call that all must make, such as an evaluation by rank 0 alone.
Two rules keep their tensors apart, and cost nothing while all is well:

- What a user calls (`meet`) begins with a meeting: every rank says in the store what it is about to
  do and after which step, and no tensor crosses before all have said the same. They meet in a group
  of processes of their own, so that no sync can take part by mistake.
- What a step does (`wait`) starts at once. Whoever has waited for a second says so in the store and
  looks at the others. Where another one waits for it in a call that it can't come to, all end.

So a sync carries no label in its rows: its bits, its size and its dtype stay as they are.
"""

from __future__ import annotations

import json
import time
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from localsgd.errors import PeerLost, UserError
from localsgd.wire.broken import is_late

SLICE = timedelta(seconds=1)
"""A wait looks around so often."""
TOLD_SECONDS = 10.0
"""Between two times that a rank says at which step it is."""
PATIENCE_SECONDS = 60.0
"""After which a waiting rank says for whom it waits."""
GRACE_SECONDS = 2.0
"""In which all ranks that notice a loss have told so."""


class Event(NamedTuple):
    """What a rank does together with others.

    Args:
        what: in words.
        step: how many steps it has taken, that at hand included.
        by_hand: whether it is a call of the user, which all ranks must make.
    """

    what: str
    step: int
    by_hand: bool = False

    def __str__(self) -> str:
        return f"in {self.what} at step {self.step}"


class Seen(NamedTuple):
    """What a rank has told last.

    Args:
        event: where it is.
        waits: whether it waits there for others.
        ranks: for whom; for all where empty.
        meeting: the number of the last meeting that it has come to.
        lost: whether a collective of it has failed there.
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
    """What this rank tells the others, and reads of them.

    Args:
        store: that all ranks share.
        rank: of this process.
        processes: how many there are.
        limit: the longest time to wait for another rank.

    Attributes:
        event: what the collectives that start now belong to.
    """

    def __init__(self, store: dist.Store, rank: int, processes: int, limit: timedelta) -> None:
        self._store = dist.PrefixStore("localsgd", store)
        self._own = self._store
        self.rank = rank
        self.processes = processes
        self.limit = limit.total_seconds()
        self.event = Event("the start", 0)
        self._group: dist.ProcessGroup | None = None
        self._release: weakref.finalize | None = None
        self._failed: Waiting | None = None
        self._meeting = 0
        self._told_at = 0.0
        self._marks: dict[int, str] = {}  # that have been read last

    @staticmethod
    def of_processes(limit: timedelta) -> Presence | None:
        """Among the ranks of `torch.distributed`, where there are several."""
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return None
        store = dist.distributed_c10d._get_default_store()
        return Presence(store, dist.get_rank(), dist.get_world_size(), limit)

    def owns(self, groups: Iterable[object]) -> None:
        """These process groups, and its own, end when nobody has this presence any more."""
        self._release = weakref.finalize(self, _end, self._group, groups)
        self._release.atexit = False

    def _keep_groups(self) -> None:
        """A collective may be under way for ever, and the end of its group would wait for it: they
        stay, also when all of `torch.distributed` has been ended.
        """
        if self._release is not None and (released := self._release.detach()) is not None:
            _kept.append(released[2])

    # What a user calls.

    def open(self, event: Event) -> None:
        """The first meeting, of all who make this optimizer: in the store alone."""
        self.meet(event)
        self._own = dist.PrefixStore(str(self._store.add(f"meetings/{self.rank}", 0)), self._store)
        group = dist.new_group(timeout=timedelta(seconds=self.limit), backend="gloo")
        self._group = group if isinstance(group, dist.ProcessGroup) else None

    def meet(self, event: Event, detail: str = "") -> list[str]:
        """Returns once all ranks are in `event`, with the details that they give, by rank.

        Raises:
            UserError: on all ranks, where some are in another one.
            PeerLost: where some have not come within the limit.
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
            raise PeerLost(self._store.get(f"{place}/ended").decode())
        keys = [f"{place}/{rank}" for rank in range(self.processes)]
        found = [json.loads(text) for text in self._store.multi_get(keys)]
        events = {rank: Event(*other) for rank, (other, _) in enumerate(found)}
        if len(set(events.values())) > 1:
            raise UserError(apart(events))
        self._forget(number - 1)  # Everybody has come here, and so has read what was told there.
        return [detail for _, detail in found]

    def _until_all_are_here(self, group: dist.ProcessGroup, place: str, event: Event) -> None:
        try:
            self.wait(group.allreduce([torch.zeros(1)]), event, group)
        except RuntimeError as error:
            if not is_late(error):
                raise
            self._give_up(place, event)
        if self._own.check(["parted"]):  # The others have come to let this one go.
            self._part(self._own.get("parted").decode(), event)

    def _until_complete(self, place: str, event: Event) -> None:
        waiting = Waiting(event)
        pause, looked = 0.0002, waiting.start
        # A store's own wait would print a warning whenever it is left to look around.
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
            f"{self._last_seen(missing)}); all ranks must call it"
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
        """This rank has come to `event`: told now and then."""
        self.event = event
        now = time.monotonic()
        if now - self._told_at > TOLD_SECONDS:
            self._told_at = now
            self._tell(Seen(event, meeting=self._meeting))

    def wait(self, work: dist.Work, event: Event, group: dist.ProcessGroup) -> None:
        """`work.wait()`, in which this rank looks around where it takes long."""
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
        """A wait that can't be interrupted to look around begins: it is told before."""
        self._failed = Waiting(event, self._ranks(group))  # if it fails
        self._tell(Seen(event, True, self._failed.ranks, self._meeting))

    def mark(self) -> None:
        """Sets this rank apart in what it is about to take part in."""
        self._own.set(f"marked/{self.event}/{self.rank}", "")
        self._own.set(f"marked/{self.rank}", str(self.event))

    def marked(self) -> list[int]:
        """The ranks that are set apart in what has just been done; those that have last been set
        apart in anything, where it began with an earlier event, as a late mean does.
        """
        ranks = range(self.processes)
        place = f"marked/{self.event}"
        now = [rank for rank in ranks if self._own.check([f"{place}/{rank}"])]
        self._marks |= dict.fromkeys(now, str(self.event))
        return now or [rank for rank in ranks if self._untold(rank)]

    def _untold(self, rank: int) -> bool:
        if not self._own.check([f"marked/{rank}"]):
            return False
        last = self._own.get(f"marked/{rank}").decode()
        before, self._marks[rank] = self._marks.get(rank), last
        return last != before

    def _ranks(self, group: dist.ProcessGroup) -> Sequence[int]:
        ranks = dist.get_process_group_ranks(group)
        return () if len(ranks) == self.processes else ranks

    def _look_around(self, waiting: Waiting) -> None:
        own = Seen(waiting.event, True, waiting.ranks, self._meeting)
        self._tell(own)
        if self._own.check(["parted"]):
            self._part(self._own.get("parted").decode(), waiting.event)
        seen = self._read(waiting.ranks)
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
                f"{named(missing)} did not come yet{self._last_seen(missing)}",
                stacklevel=2,
            )

    def _part(self, said: str, own: Event) -> None:
        """Ends the wait here, and on all others that look around."""
        self._keep_groups()
        self._own.set("parted", said)
        if self._group is not None and not own.by_hand:
            # Whoever waits in a meeting is let go, in order that its program can end. With that its
            # connections do, and so does what this rank has under way.
            self._group.allreduce([torch.zeros(1)])
        raise UserError(said)

    # What is left when a collective has failed.

    def who_is_lost(self, late: bool) -> str:
        """Which ranks have not noticed the loss, and so are its cause, in the words of a line."""
        self._keep_groups()
        failed = self._failed or Waiting(self.event)
        with suppress(RuntimeError):
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
        return "another rank did not answer within `timeout`" if late else "another rank ended"

    def _tell(self, seen: Seen) -> None:
        self._own.set(str(self.rank), json.dumps(seen))

    def _read(self, ranks: Sequence[int]) -> dict[int, Seen]:
        """What others have told last, by rank."""
        found = {}
        for rank in ranks or range(self.processes):
            if rank != self.rank and self._own.check([str(rank)]):
                event, *rest = json.loads(self._own.get(str(rank)))
                found[rank] = Seen(Event(*event), *rest)
        return found

    def _last_seen(self, ranks: Sequence[int]) -> str:
        seen = self._read(ranks)
        steps = [f"rank {r} {seen[r].event}" for r in ranks[:8] if r in seen]
        return f"; last seen: {', '.join(steps)}" if steps else ""


_kept: list[object] = []
"""Groups that are never ended."""


def _end(own: object, groups: Iterable[object]) -> None:
    for group in (own, *groups):
        if isinstance(group, dist.ProcessGroup):
            with suppress(ValueError, RuntimeError, AssertionError):  # The user has ended all.
                dist.destroy_process_group(group)


def never_met(called: Seen, stepped: Seen) -> bool:
    """Whether one waits in a meeting that the other, in a later step, has not come to."""
    return (
        called.event.by_hand
        and not stepped.event.by_hand
        and called.meeting > stepped.meeting
        and stepped.event.step > called.event.step
    )


def apart(events: Mapping[int, Event]) -> str:
    """A line that says which rank is where."""
    by_event: dict[Event, list[int]] = {}
    for rank, event in sorted(events.items()):
        by_event.setdefault(event, []).append(rank)
    found = [f"{named(ranks)} {_are(ranks)} {event}" for event, ranks in by_event.items()]
    return (
        f"{', '.join(found)}; all ranks must make the same calls after the same number of steps "
        "(if they have unequal numbers of batches, cut epochs to the shortest, for example by "
        "DistributedSampler(drop_last=True))"
    )


def named(ranks: Sequence[int]) -> str:
    """`rank 3`, or `ranks 1, 2`."""
    shown = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"
