"""Notices modules that were replaced or added, whose parameters no row holds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from torch import nn

from localsgd.errors import UserError
from localsgd.rows.model_rows import Row


class Modules:
    """The modules of a model, as they were when `LocalSGD` was made.

    Args:
        module: the model.
        rows: hold the parameters that must stay in it.
        changed: called once all of these are still there, but some module is another one.
    """

    def __init__(self, module: nn.Module, rows: Sequence[Row], changed: Callable[[], None]) -> None:
        self._module = module
        self._rows = rows
        self._changed = changed
        self._named = [
            (slot.name, parameter)
            for row in rows
            for slot, parameter in zip(row.layout.slots, row.parameters, strict=True)
        ]
        self._note()

    def _note(self) -> None:
        held = (module._modules for module in self._module.modules())
        self._parts = [modules for modules in held if isinstance(modules, dict)]
        self._children = self._now()

    def _now(self) -> list[nn.Module | None]:
        return list(itertools.chain.from_iterable(map(dict.values, self._parts)))

    def check(self) -> None:
        """Raises if the model has lost a parameter that is averaged."""
        if self._now() == self._children:  # Checked at every sync, so by C functions.
            return
        for row in self._rows:
            row.check_in_place()  # It knows of parametrizations, which are modules too.
        there = set(map(id, self._module.parameters()))
        for name, parameter in self._named:
            if id(parameter) not in there:
                raise UserError(
                    f"the model has lost {name}, which LocalSGD averages: a module was replaced "
                    "since LocalSGD was made, and no optimizer steps the new one; replace modules "
                    "before optimizer and LocalSGD are made, or make both anew"
                )
        self._note()
        self._changed()
