"""The interface to the wire: the operations that a level may use.

A collective joins the M members of each of g groups. This process hosts m of a group's members, and
other processes host the others (if any), in the order of the members. Every call starts at once and
is waited for through `Pending`.

Shapes: g groups hosted here · m members of each hosted here · M members of each in all · n, c
scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Pending(Generic[T]):
    """A result that is being computed. `wait()` returns it, and may be called again."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._result: list[T] = []

    @staticmethod
    def done(result: T) -> Pending[T]:
        return Pending(lambda: result)

    def then(self, change: Callable[[T], T]) -> Pending[T]:
        """The result after `change`, which is applied in the wait."""
        return Pending(lambda: change(self.wait()))

    def wait(self) -> T:
        if self._finish is not None:
            self._result.append(self._finish())
            self._finish = None
        return self._result[0]


class Collective(Protocol):
    """The operations on the members of a level.

    Implemented in one process, over `torch.distributed`, and by wrappers around both.
    """

    @property
    def members(self) -> int:
        """M: members of each group, on all processes together."""
        ...

    def sum(self, x: Tensor) -> Pending[Tensor]:
        """Sums `x [g, m, n]` over all M members, in place.

        The result `[g, n]` is `x[:, 0]`; the other values of `x` are undefined.
        """
        ...

    def gather(self, x: Tensor) -> Pending[Tensor]:
        """Gathers `x [g, m, c]` of every member, in order: `[g, M, c]`."""
        ...

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        """Sends `x[g, i, j]` of member i to member j.

        The third axis of `x [g, m, M, c]` is the receiver, and that of the result the sender.
        """
        ...


class Sending(Collective, Protocol):
    """A collective whose members can also send to one other each, as gossip needs."""

    def send(self, x: Tensor, to: Sequence[int]) -> Pending[Tensor]:
        """Sends `x[g, i]` of member i to member `to[i]`, for a permutation `to` of all M members.

        The result `[g, m, n]` is what has arrived at each hosted member; `x [g, m, n]` must stay
        until then. A member that sends to itself sends nothing.
        """
        ...
