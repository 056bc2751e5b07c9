"""The seam to the wire: what a level may ask for, and nothing about what the numbers mean.

A collective joins the M members of each of g groups. m of a group's members are hosted by this
process, the others (if any) by other processes, in the order of the members. Every call is started
at once and waited for through `Pending`.

Shapes: g groups hosted here · m members of each hosted here · M members of each in all · n, c
scalars.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from torch import Tensor

T = TypeVar("T")


class Pending(Generic[T]):
    """A result on its way. `wait()` returns it; waiting twice is harmless."""

    def __init__(self, finish: Callable[[], T]) -> None:
        self._finish: Callable[[], T] | None = finish
        self._result: list[T] = []

    @staticmethod
    def done(result: T) -> Pending[T]:
        return Pending(lambda: result)

    def then(self, change: Callable[[T], T]) -> Pending[T]:
        """The result after `change`, applied when it is waited for."""
        return Pending(lambda: change(self.wait()))

    def wait(self) -> T:
        if self._finish is not None:
            self._result.append(self._finish())
            self._finish = None
        return self._result[0]


class Collective(Protocol):
    """What a level asks of the wire.

    Implemented in one process, over `torch.distributed`, and by a meter around both.
    """

    @property
    def members(self) -> int:
        """M: members of each group, on all processes together."""
        ...

    def sum(self, x: Tensor) -> Pending[Tensor]:
        """Sum of `x [g, m, n]` over all M members, in place.

        The result `[g, n]` is `x[:, 0]`; the rest of `x` is scratch.
        """
        ...

    def gather(self, x: Tensor) -> Pending[Tensor]:
        """`x [g, m, c]` of every member, in order: `[g, M, c]`."""
        ...

    def exchange(self, x: Tensor) -> Pending[Tensor]:
        """Member i sends `x[g, i, j]` to member j.

        From `[g, m, M, c]`, receivers in the third place, to `[g, m, M, c]`, senders there.
        """
        ...
