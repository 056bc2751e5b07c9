"""Notices weights that a user sets between steps, if a level keeps an anchor.

A level with an outer optimizer or a compressor averages updates, anchor − w. Weights that are
loaded between steps would be taken for an update, and half undone. PyTorch counts how often a
tensor is written in place (not through `.data`), so this can be noticed at no cost: the inner
optimizer writes in a step, and nothing writes between steps. At the start of a round, when all
levels have just been averaged, the new weights become the anchor; in the middle of a round they
can't, and a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from localsgd.averaging.placement import Placement
from localsgd.optimizer.consistency import check_same_values
from localsgd.optimizer.model_levels import ModelLevels
from localsgd.rows.model_rows import Row
from localsgd.rows.parts import DIGEST_BYTES, digest_of_tensors
from localsgd.rows.shards import local
from localsgd.wire import Pending

FEW = 8
"""Number of parameters that are checked in the middle of a round."""


class Written:
    """Notices that all parameters of a model were set between two steps.

    A single parameter that is written (clipped, renormalised in the forward pass) counts as its
    rank's progress.

    Args:
        module: the model.
        rows: of this worker.
        models: the levels over them.
        placement: where the other workers are.
    """

    def __init__(
        self, module: nn.Module, rows: Sequence[Row], models: ModelLevels, placement: Placement
    ) -> None:
        self._models = models
        self._rows = rows
        self._world = placement.world
        self._ranks = placement.peers
        self._on = models.keeps_anchors
        ever = set(map(id, written_forward(module)))
        self._parameters = [p for row in rows for p in row.parameters if id(p) not in ever]
        self._few = self._parameters[:: max(1, len(self._parameters) // FEW)]
        self._warned = False
        self._observations: Pending[Tensor] | None = None
        self.forget()

    def forget(self) -> None:
        """Accepts all writes until the next step, since a state was loaded."""
        self._known: list[int] = []

    def look(self, start: bool) -> None:
        """Checks before a step; `start` says whether all levels have just been averaged."""
        if not self._on:
            return
        if start:
            self._begin_round(self._is_set(self._parameters))
        elif not self._warned and self._is_set(self._few):
            self._warned = True
            warnings.warn(
                "weights were set between steps in the middle of a round, and a level that keeps "
                "an anchor takes that for progress, which it may compress or scale; call finish() "
                "on all ranks before weights are set (nothing is wrong if the same weights were "
                "restored, or if they are clipped at every step)",
                stacklevel=2,
            )

    def note(self, start: bool) -> None:
        """Records the parameters' versions after a step and the averaging that followed."""
        if self._on:
            noted = self._parameters if start else self._few
            self._known = [local(p)._version for p in noted]

    def _is_set(self, parameters: Sequence[Tensor]) -> bool:
        known, self._known = self._known, []
        return len(known) == len(parameters) > 0 and all(
            local(p)._version != before for p, before in zip(parameters, known, strict=True)
        )

    def _begin_round(self, is_set: bool) -> None:
        """Makes weights that were set the anchor, and starts to compare them among ranks."""
        digest = bytes(DIGEST_BYTES)
        if is_set and not self._models.at_anchors:
            digest = digest_of_tensors(("", row.fill()) for row in self._rows)
            self._models.catch_up()
        if self._world.members > 1:
            mine = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
            self._observations = self._world.gather(
                mine.to(self._rows[0].values.device)[None, None]
            )

    def check(self) -> None:
        """Raises on all ranks, before all levels are averaged, if ranks set different weights."""
        digests, self._observations = self._observations, None
        if digests is not None:
            check_same_values(
                [bytes(row.tolist()) for row in digests.wait()[0].cpu()],
                "weights that were set between steps",
                "set the same on all ranks at the same step, or none; start all again from the "
                "last saved state",
                self._ranks,
            )


def written_forward(module: nn.Module) -> Iterator[Tensor]:
    """The weights that a forward pass overwrites."""
    for part in module.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None:
            yield part.weight
