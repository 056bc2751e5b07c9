"""An engine whose workers are threads of one process: who comes and goes is the test's to say.

Workers meet once all that have been announced are there, as a lighthouse with a long patience would
have it. Their ranks follow from their names. Sums are taken in the order of the ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from localsgd.wire.engine import Broken, Momenta

SECONDS = 60


class Killed(BaseException):
    """A worker ends here, without a word to the others."""


class Quorum:
    """Those who have met."""

    def __init__(self, engines: list[Member]) -> None:
        self.engines = engines
        self._given: list[dict[int, Any]] = []  # of each call, by rank
        self._taken: list[int] = []
        self._mail: dict[tuple[int, int], list[Any]] = {}  # by sender and receiver
        self._calls = [0] * len(engines)
        self._changed = threading.Condition()
        self._broken = False

    def all_gave(self, rank: int, what: Any) -> list[Any]:
        """What all have given, by rank, once they have."""
        with self._changed:
            call = self._calls[rank]
            self._calls[rank] += 1
            if call == len(self._given):
                self._given.append({})
                self._taken.append(0)
            given = self._given[call]
            given[rank] = what
            self._changed.notify_all()
            whole = lambda: len(given) == len(self.engines)  # noqa: E731
            assert self._changed.wait_for(lambda: whole() or self._broken, SECONDS)
            if not whole():
                raise Broken("somebody has gone")
            self._taken[call] += 1
            found = [given[other] for other in range(len(self.engines))]
            if self._taken[call] == len(self.engines):
                given.update(dict.fromkeys(given))  # Nobody asks any more; memory is metered.
            return found

    def post(self, source: int, to: int, what: Any) -> None:
        with self._changed:
            self._mail.setdefault((source, to), []).append(what)
            self._changed.notify_all()

    def posted(self, source: int, to: int) -> Any:
        """The next thing that one has sent to another."""
        with self._changed:
            mail = self._mail.setdefault((source, to), [])
            assert self._changed.wait_for(lambda: mail or self._broken, SECONDS)
            if not mail:
                raise Broken("somebody has gone")
            return mail.pop(0)

    def abort(self) -> None:
        """Ends calls for which somebody is missing."""
        with self._changed:
            self._broken = True
            self._changed.notify_all()


class Seat:
    """One worker's `Peers`."""

    def __init__(self, quorum: Quorum, rank: int, calls: dict[str, int]) -> None:
        self._quorum, self.rank, self.calls = quorum, rank, calls
        self.size = len(quorum.engines)

    def _counted(self, call: str) -> None:
        self.calls[call] = self.calls.get(call, 0) + 1
        self._quorum.engines[self.rank].before(call)

    def _all(self, call: str, what: Any) -> list[Any]:
        self._counted(call)
        return self._quorum.all_gave(self.rank, what)

    def sum(self, x: Tensor) -> None:
        first, *others = self._all("sum", x.clone())
        for other in others:
            first = first + other
        x.copy_(first)

    def gather(self, x: Tensor) -> Tensor:
        return torch.stack(self._all("gather", x.clone()))

    def share(self, x: Tensor, source: int) -> None:
        x.copy_(self._all("share", x.clone())[source])

    def swap(self, sent: dict[int, Tensor], received: dict[int, Tensor]) -> None:
        """Only those call it that send or receive something."""
        self._counted("swap")
        for rank, x in sent.items():
            self._quorum.post(self.rank, rank, x.clone())
        for rank, x in received.items():
            x.copy_(self._quorum.posted(rank, self.rank))


class Hall:
    """Where workers meet."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._members: list[Member] = []
        self._waiting: list[Member] = []
        self._threads: list[threading.Thread] = []
        self.found: dict[str, Any] = {}
        self.raised: dict[str, BaseException] = {}

    def start(self, work: Callable[[Member], Any], *names: str, **settings: Any) -> None:
        """Announces workers, and lets each of them do its `work(engine)`."""
        made = [Member(self, name, **settings) for name in names]
        with self._changed:
            self._members += made
        for member in made:
            thread = threading.Thread(target=self._work, args=(member, work), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self, member: Member, work: Callable[[Member], Any]) -> None:
        torch.set_num_threads(1)
        try:
            self.found[member.name] = work(member)
        except Killed:
            pass
        except BaseException as error:
            self.raised[member.name] = error
        finally:
            member.leave()

    def end(self) -> dict[str, Any]:
        """What each worker's work has given, by name."""
        for thread in self._threads:  # Grows while workers start others.
            thread.join(SECONDS)
            assert not thread.is_alive(), f"within {SECONDS} s only {sorted(self.found)} have ended"
        for name, error in self.raised.items():
            raise AssertionError(f"{name} raised {error!r}") from error
        return self.found

    def meet(self, member: Member) -> Seat:
        with self._changed:
            self._waiting.append(member)
            self._form()
            assert self._changed.wait_for(lambda: member not in self._waiting, SECONDS)
        quorum = member.quorum
        assert quorum is not None
        source = max(quorum.engines, key=lambda other: other.syncs)
        saved = quorum.all_gave(member.rank, source.save() if source is member else None)
        if member.syncs < source.syncs:
            member.load({"syncs": source.syncs})
            member.take(saved[source.rank])
        quorum.all_gave(member.rank, None)
        return Seat(quorum, member.rank, member.calls)

    def _form(self) -> None:
        if len(self._waiting) < len(self._members):
            return
        quorum = Quorum(sorted(self._waiting, key=lambda member: member.name))
        for rank, member in enumerate(quorum.engines):
            member.quorum, member.rank = quorum, rank
        self._waiting.clear()
        self._changed.notify_all()

    def gone(self, member: Member) -> None:
        with self._changed:
            if member not in self._members:
                return
            self._members.remove(member)
            if member.quorum is not None:
                member.quorum.abort()
            if self._members:
                self._form()


class Member:
    """The `Engine` of one worker."""

    def __init__(
        self, hall: Hall, name: str, workers: int | None = None, momenta: Momenta = "copy"
    ) -> None:
        self._hall = hall
        self.name, self.workers, self.momenta = name, workers, momenta
        self.begins = True
        self.syncs = 0
        self.rank = 0
        self.quorum: Quorum | None = None
        self.calls: dict[str, int] = {}
        self.before: Callable[[str], None] = lambda call: None
        self.save: Callable[[], Any]
        self.take: Callable[[Any], None]

    def keep(self, save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        self.save, self.take = save, load

    def meet(self) -> Seat:
        return self._hall.meet(self)

    def settle(self, failure: Exception | None) -> bool:
        if failure is not None:
            assert self.quorum is not None
            self.quorum.abort()
            return False
        self.syncs += 1
        return True

    def leave(self) -> None:
        self._hall.gone(self)

    def state(self) -> dict[str, Any]:
        return {"syncs": self.syncs}

    def load(self, state: dict[str, Any]) -> None:
        self.syncs = state["syncs"]
