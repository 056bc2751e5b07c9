"""The seam between a level and what happens to its updates on the way to the mean."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor

from localsgd.errors import UserError
from localsgd.reduce.exact import ExactMean
from localsgd.rows.layout import Layout
from localsgd.wire.collective import Collective, Pending


class Reducer(Protocol):
    """Reduces the updates of a level's members to (an approximation of) their weighted mean.

    `linear` says that the mean of updates is the update of the mean, so that a level may reduce
    models in place of updates and keep no anchor. `only_reads`, where it is set, says that equally
    weighted updates are as they were if the reduction fails. Memory, such as error feedback, lives
    in the reducer; `state` and `load` move it, as tensors of shape `[g, m, ...]` by name. `repr`
    says the settings, by which ranks are compared at the start, and nothing of layout or memory.
    """

    linear: bool

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

    def state(self) -> dict[str, Any]: ...

    def load(self, state: dict[str, Any]) -> None: ...


def part_of(reducer: Reducer, start: int, stop: int) -> Reducer:
    """A reducer like `reducer`, with a memory of its own, for scalars `[start, stop)` of a row.

    Reducers that know where tensors lie in a row say in `part(start, stop)` what that is for a part
    of it; the others are copied.
    """
    cut: Callable[[int, int], Reducer] | None = getattr(reducer, "part", None)
    return copy.deepcopy(reducer) if cut is None else cut(start, stop)


class Unsuitable(UserError):
    """A row in which a reducer has nothing to do."""


def bound_to_all(reducer: Reducer, layouts: Sequence[Layout]) -> list[Reducer]:
    """One for each row of a model; the exact mean where it has nothing to do in a row, but has in
    another, as rows differ by dtype.
    """
    found: list[Reducer] = []
    reasons: list[Unsuitable] = []
    for layout in layouts:
        try:
            found.append(bound_to(reducer, layout))
        except Unsuitable as reason:
            found.append(ExactMean())
            reasons.append(reason)
    if len(reasons) == len(layouts):
        raise reasons[0]
    return found


def bound_to(reducer: Reducer, layout: Layout) -> Reducer:
    """A reducer like `reducer`, with a memory of its own, that knows where tensors lie in a row."""
    bind: Callable[[Layout], Reducer] | None = getattr(reducer, "bound", None)
    return copy.deepcopy(reducer) if bind is None else bind(layout)
