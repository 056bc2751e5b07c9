"""Checks parameters that the inner optimizer holds and that don't train: no row has them."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from localsgd.errors import UserError


class Untrained:
    """Checks that parameters left out at the start still don't train.

    Args:
        inner: the inner optimizer, as it is now.
    """

    def __init__(self, inner: Optimizer) -> None:
        self._inner = inner
        self._count = self._counted()
        groups = inner.param_groups
        self._frozen = [p for group in groups for p in group["params"] if not p.requires_grad]

    def add(self, group: dict[str, Any]) -> None:
        """Gives the inner optimizer a further group, of tensors that don't train."""
        self.check()
        given = group["params"]
        given = [given] if isinstance(given, Tensor) else list(given)
        tensors = [item[1] if isinstance(item, tuple) else item for item in given]  # named or not
        if any(tensor.requires_grad for tensor in tensors):
            raise UserError(
                "the tensors that LocalSGD synchronises are fixed when it is made, and this group "
                "has others; add the group to the inner optimizer before, or make a new LocalSGD"
            )
        self._inner.add_param_group({**group, "params": given})
        self._count = self._counted()
        self._frozen += tensors

    def check(self) -> None:
        """Raises if a parameter has been added or has begun to train since then."""
        if self._counted() > self._count:
            raise UserError(
                "the inner optimizer has been given parameters since LocalSGD was made, and they "
                "aren't synchronised; add its groups before, or make a new LocalSGD"
            )
        if self._frozen and any(parameter.requires_grad for parameter in self._frozen):
            raise UserError(
                "a parameter that was frozen when LocalSGD was made trains now, and isn't "
                "synchronised; unfreeze it before, or make a new LocalSGD"
            )

    def _counted(self) -> int:
        return sum(len(group["params"]) for group in self._inner.param_groups)
