"""Tells gradients that a step has used from those that wait for further micro-batches."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from torch import Tensor

from localsgd.rows.model_rows import Row
from localsgd.rows.shards import local

FEW = 4
"""Number of gradients that are looked at after each step."""


class UsedGradients:
    """Knows whether any gradient has been written since the last step.

    A backward pass that begins to accumulate is preceded by one that sets all gradients to zero or
    to `None`, or else it adds to all: so a few tell of it.

    Args:
        rows: of the parameters.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self._parameters = [parameter for row in rows for parameter in row.parameters]
        self._few = self._parameters[:: max(1, len(self._parameters) // FEW)]
        self._used: list[tuple[weakref.ref[Tensor], int]] = []

    def stepped(self) -> None:
        """The gradients that stand now were used."""
        found = (parameter.grad for parameter in self._few)
        self._used = [(weakref.ref(g), local(g)._version) for g in found if g is not None]

    @property
    def waiting(self) -> bool:
        """Whether gradients stand that no step has used."""
        found = [g for p in self._few if (g := p.grad) is not None]
        if found and len(found) == len(self._used):
            pairs = zip(found, self._used, strict=True)
            if all(ref() is g and local(g)._version == before for g, (ref, before) in pairs):
                return False
        return any(parameter.grad is not None for parameter in self._parameters)
