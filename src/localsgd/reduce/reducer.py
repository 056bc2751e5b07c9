"""The seam between a level and what happens to its updates on the way to the mean."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from localsgd.errors import UserError
from localsgd.rows.layout import Layout
from localsgd.wire.collective import Collective, Pending


@runtime_checkable
class Reducer(Protocol):
    """Reduces the updates of a level's members to (an approximation of) their weighted mean.

    Inherit from it: all but `reduce` has defaults, which are those of a reducer without memory that
    treats all scalars alike. `repr` must tell the settings, by which ranks are compared at the
    start and saved states later, and nothing of layout or memory.

    Attributes:
        linear: whether the mean of updates is the update of the mean, so that a level may reduce
            models in place of updates and keep no anchor.
        only_reads: whether equally weighted updates are as they were if the reduction fails.
        members_may_change: whether members may come and go, so that `regroup` is called.
    """

    linear: bool = False
    only_reads: bool = False
    members_may_change: bool = False

    @abstractmethod
    def reduce(
        self, update: Tensor, weights: Tensor | None, collective: Collective
    ) -> Pending[Tensor]:
        """From `update [g, m, n]`, which is scratch afterwards, to `[g, n]`.

        Args:
            update: the hosted members' updates.
            weights: `[g, m]` of the hosted members, summing to 1 over all of a group; `None` for
                equal ones.
            collective: joins the members.
        """
        ...

    def bound(self, layout: Layout) -> Reducer:
        """A new reducer with these settings, an empty memory, and the places of tensors in a row.

        Raises:
            Unsuitable: it has nothing to do in such a row.
        """
        return copy.deepcopy(self)

    def part(self, start: int, stop: int) -> Reducer:
        """A new reducer with these settings and an empty memory, for scalars `[start, stop)`."""
        return copy.deepcopy(self)

    def regroup(self, before: int, now: int) -> None:
        """Adapts the memory to a group of `now` members in place of `before`, maybe other ones.

        What this member's memory adds to means must stay what it is. With 0 before, this member is
        new, and its memory is empty.
        """
        return

    def shared(self) -> list[Tensor]:
        """The part of its memory that is equal on all members, for one that is new to fill."""
        return []

    def state(self) -> dict[str, Any]:
        """Its memory, such as error feedback, by name: tensors have the shape `[g, m, ...]`."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """Takes copies of what `state` gave."""
        return


class Unsuitable(UserError):
    """A row in which a reducer has nothing to do."""
