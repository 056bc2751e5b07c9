"""Notices weights that are set inside `averaged_model()`, which puts each rank's own back."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from localsgd.optimizer.consistency import bits_of
from localsgd.optimizer.written import written_forward
from localsgd.rows.model_rows import Row
from localsgd.rows.shards import local


class SetInside:
    """Warns once.

    Args:
        module: the model.
        rows: of this worker.
        speaks: whether this process is the one to warn.
    """

    def __init__(self, module: nn.Module, rows: Sequence[Row], speaks: bool) -> None:
        self._module = module
        self._rows = rows
        self._speaks = speaks
        ever = set(map(id, written_forward(module)))
        self._parameters = [p for row in rows for p in row.parameters if id(p) not in ever]

    @contextmanager
    def watched(self, undone: bool) -> Generator[None]:
        """A context in which the model shows the average.

        Args:
            undone: whether weights are put back at its end; else only buffers are.
        """
        if not self._speaks:
            yield
            return
        versions, bits = self._versions(), self._bits()
        yield
        # Weights that were swapped in and out again have other versions, but the same bits.
        if versions == self._versions() or all(map(torch.equal, bits, self._bits())):
            return
        if undone:
            self._warn("puts each rank's own back at its end")
        elif any(True for _ in self._module.buffers()):
            self._warn("leaves them as they are at its end, and puts buffers back")

    def _warn(self, what: str) -> None:
        self._speaks = False
        warnings.warn(
            f"weights were set inside averaged_model(), which {what}; load a state before or after "
            "it (nothing is wrong if weights were set for a trial)",
            stacklevel=4,
        )

    def _versions(self) -> list[int]:
        return [local(parameter)._version for parameter in self._parameters]

    def _bits(self) -> list[torch.Tensor]:
        return [bits_of(row.fill()) for row in self._rows]
