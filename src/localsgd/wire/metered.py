"""A meter around a collective, and the ledger that it writes.

Bytes are the payload that one member of a level sends (a worker, or outside the innermost level a
block), independently of the transport and of how members are hosted. A chunk that a member would
send to itself is not counted, and where some members send to none, it is the mean of all. Syncs of
models, gradients, inner states and signals count; checks at the start, evaluation and the buffers
of the final model do not.

The bytes that arrive at a member are modelled, by the kind of call, for M members and c bytes sent:

    sum: 2 (M - 1)/M c, as a ring     gather: (M - 1) c     exchange, send: c
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, cast

from torch import Tensor

from localsgd.wire.collective import Collective, Pending, Sending, T

Waiting: TypeAlias = Callable[[], AbstractContextManager[object]]
"""Makes a context in which this process waits for others, and so doesn't count as stuck."""


@dataclass
class Entry:
    """Totals of one level.

    Args:
        calls: number of collectives.
        bytes: payload that a member has sent.
        seconds: time that this process has waited.
        arrived: bytes that have arrived at a member (modelled).
    """

    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0
    arrived: int = 0

    def __sub__(self, other: Entry) -> Entry:
        return Entry(
            self.calls - other.calls,
            self.bytes - other.bytes,
            self.seconds - other.seconds,
            self.arrived - other.arrived,
        )


@dataclass
class Ledger:
    """The traffic of each level (innermost first) since the run began.

    It is saved and resumed with the run.
    """

    levels: list[Entry] = field(default_factory=list)

    @staticmethod
    def of(levels: int) -> Ledger:
        return Ledger([Entry() for _ in range(levels)])

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.levels)

    @property
    def seconds(self) -> float:
        return sum(entry.seconds for entry in self.levels)

    def state(self) -> list[dict[str, Any]]:
        return [asdict(entry) for entry in self.levels]

    def load(self, state: Sequence[Mapping[str, Any]]) -> None:
        for entry, saved in zip(self.levels, state, strict=True):
            vars(entry).update(vars(Entry(**saved)))


@dataclass(frozen=True)
class Metered:
    """`inner`, with every call counted in `entry`.

    Args:
        inner: does the work.
        entry: counts it.
        waiting: a context around everything that may wait for other processes.
    """

    inner: Collective
    entry: Entry
    waiting: Waiting = nullcontext

    @property
    def members(self) -> int:
        return self.inner.members

    def sum(self, x: Tensor) -> Pending[Tensor]:
        payload, others = _member_bytes(x), self.members - 1
        arrives = 2 * others * payload // self.members
        return self._count(lambda: self.inner.sum(x), payload, arrives)

    def gather(self, x: Tensor) -> Pending[Tensor]:
        payload, others = _member_bytes(x), self.members - 1
        return self._count(lambda: self.inner.gather(x), payload, others * payload)

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        payload = _member_bytes(x) * (self.members - 1) // self.members
        return self._count(lambda: self.inner.exchange(x), payload, payload)

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        moved = sum(source != target for source, target in enumerate(to))
        payload = _member_bytes(x) * moved // self.members
        return self._count(lambda: cast(Sending, self.inner).send(x, to), payload, payload)

    def _count(
        self, call: Callable[[], Pending[Tensor]], payload: int, arrives: int
    ) -> Pending[Tensor]:
        self.entry.calls += 1
        if self.members > 1:
            self.entry.bytes += payload
            self.entry.arrived += arrives
        pending = self._timed(call)
        return Pending(lambda: self._timed(pending.wait))

    def _timed(self, action: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            with self.waiting():
                return action()
        finally:
            self.entry.seconds += time.perf_counter() - start


def by_level(name: str, values: Sequence[float]) -> dict[str, float]:
    """Values of the levels under flat names; level 1 is the innermost.

    >>> by_level("syncs", [8, 2])
    {'syncs_level_1': 8, 'syncs_level_2': 2}
    """
    return {f"{name}_level_{level}": value for level, value in enumerate(values, start=1)}


def traffic(ledger: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """A ledger's state as flat numbers: of all levels together, then of each.

    `sent_bytes` and `arrived_bytes` (modelled) are of one member of a level, `waited_seconds` of
    this process, and `collectives` a count.
    """
    names = {
        "sent_bytes": "bytes",
        "arrived_bytes": "arrived",
        "waited_seconds": "seconds",
        "collectives": "calls",
    }
    found: dict[str, float] = {}
    for name, key in names.items():
        values = [entry[key] for entry in ledger if key in entry]
        if values:
            found |= {name: sum(values), **by_level(name, values)}
    return found


def _member_bytes(x: Tensor) -> int:
    """The bytes of one hosted member's part of `x [g, m, ...]`."""
    return x.nbytes // (x.shape[0] * x.shape[1])
