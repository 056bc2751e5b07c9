"""Checks for several `LocalSGD` on one model, or one on a part of it."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from weakref import WeakSet

from torch import nn

from localsgd.errors import UserError
from localsgd.rows.model_rows import Row


class Synchronised:
    """One `LocalSGD`'s part of a model.

    Args:
        module: the model.
        rows: the rows that this `LocalSGD` synchronises.
        speaks: whether this process is the one to warn.
    """

    def __init__(self, module: nn.Module, rows: Sequence[Row], speaks: bool) -> None:
        self._module = module
        self._rows = rows
        self._speaks = speaks
        self._times = 0  # shown
        self._warned = False
        _all.add(self)

    @contextmanager
    def showing(self) -> Generator[None]:
        """A context in which this part holds the average.

        Warns if another part of the model did not hold it at the same time.
        """
        others = [(other, other._times) for other in _all if self._beside(other)]
        self._times += 1
        _showing.append(self)
        try:
            yield
        finally:
            _showing.remove(self)
        left = [o for o, times in others if o._times == times and o not in _showing]
        if left and self._speaks and not self._warned:
            self._warned = True
            warnings.warn(
                f"averaged_model() of one of {len(others) + 1} LocalSGD on this model averaged "
                "only its own parameters, and the others stayed each rank's own; enter all: "
                "with first.averaged_model(), second.averaged_model(): ...",
                stacklevel=2,
            )

    def _beside(self, other: Synchronised) -> bool:
        """Whether `other` still holds parameters of the same model."""
        return (
            other is not self
            and other._module is self._module
            and all(row.in_place for row in other._rows)
        )

    @property
    def shown(self) -> bool:
        """Whether this part holds the average now."""
        return self in _showing

    def check_not_shown(self, call: str, why: str) -> None:
        """Refuses a change while this or another `LocalSGD` shows an average of this model."""
        if self.shown:
            raise UserError(f"{call}() inside averaged_model() {why}; leave the context before")
        if not _showing:
            return
        own = set(map(id, self._module.modules()))
        others = (module for each in _showing for module in each._module.modules())
        if any(id(module) in own for module in others):
            raise UserError(
                f"{call}() inside averaged_model() of another LocalSGD on the same model would "
                "change the average, and be undone at its end; leave the context first"
            )

    def check_coverage(self) -> None:
        """Warns of parameters that have a gradient and are in no `LocalSGD`."""
        if not self._speaks:
            return
        covered = {id(p) for each in _all for row in each._rows for p in row.parameters}
        named = self._module.named_parameters()
        left = [n for n, p in named if p.grad is not None and id(p) not in covered]
        if left:
            warnings.warn(
                f"{len(left)} parameters of the model have gradients and are in no LocalSGD (such "
                f"as {left[0]}), so that ranks never average them; give them to the inner "
                "optimizer before LocalSGD is made, or freeze them by requires_grad_(False)",
                stacklevel=2,
            )


_all: WeakSet[Synchronised] = WeakSet()
_showing: list[Synchronised] = []
