"""The seam between a level and what happens to its updates on the way to the mean."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from localsgd.collective.seam import Collective, Pending


class Reducer(Protocol):
    """Reduces the updates of a level's members to (an approximation of) their weighted mean.

    `linear` says that the mean of updates is the update of the mean, so that a level may reduce
    models in place of updates and keep no anchor. Memory, such as error feedback, lives in the
    reducer; `state` and `load` move it, as tensors of shape `[g, m, ...]` by name.
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
