"""The interface to an engine that joins workers which come and go, such as torchft.

For every sync the engine says who is there, gives a worker that is behind what it has missed, and
says in the end whether the sync counts. It moves tensors and knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

Momenta: TypeAlias = Literal["copy", "zero"]
"""With which inner state a worker that joins begins: that of a worker which is there, or none."""


class Broken(RuntimeError):
    """A sync that can't be completed with those who began it. It may be tried again with others."""


class Peers(Protocol):
    """The workers of one sync. Every call is waited for, and raises `Broken` if one has gone.

    Attributes:
        rank: of this worker among them.
        size: how many they are.
    """

    rank: int
    size: int

    def sum(self, x: Tensor) -> None:
        """Sums contiguous `x` over all, in place."""
        ...

    def gather(self, x: Tensor) -> Tensor:
        """Contiguous `x [c]` of all, by rank: `[size, c]`."""
        ...

    def share(self, x: Tensor, source: int) -> None:
        """Overwrites contiguous `x` with that of the rank `source`."""
        ...

    def swap(self, sent: dict[int, Tensor], received: dict[int, Tensor]) -> None:
        """Sends tensors to ranks, and fills those that other ranks send here."""
        ...


class Engine(Protocol):
    """Knows who is there.

    Attributes:
        name: of this worker, for messages.
        workers: K of the run as it is planned; that of the first sync if `None`.
        momenta: of a worker that joins.
        begins: whether this worker may begin a run; one that is started again may only join.
        syncs: that have counted.
    """

    name: str
    workers: int | None
    momenta: Momenta
    begins: bool

    @property
    def syncs(self) -> int: ...

    def keep(self, save: Callable[[], Any], load: Callable[[Any], None]) -> None:
        """How a worker that is behind gets what others have: their `save()`, into its `load`."""
        ...

    def meet(self) -> Peers:
        """Waits until it is clear who is in this sync; a worker that is behind `load`s.

        Raises:
            Broken: a worker went while this was found out.
            PeerLost: nobody knows who is there, so that the run can't go on.
        """
        ...

    def settle(self, failure: Exception | None) -> bool:
        """Whether the sync counts, which it never does after a failure here."""
        ...

    def leave(self) -> None:
        """This worker takes part in no further sync."""
        ...

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...
