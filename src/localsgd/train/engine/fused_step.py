"""Fuses the optimizer steps of all workers of a process into one.

An inner optimizer treats every tensor separately, so one optimizer over the tensors of all workers
takes the same steps, bit for bit, and has the overhead of a step only once.

Shapes: w workers hosted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.optim import Optimizer


class Together:
    """Steps the parameters of all `optimizers` by a single one of the same kind.

    The joint optimizer holds the workers' own state dictionaries, so that saving, averaging or
    resetting them by worker works as without it.

    Args:
        make: makes an optimizer of parameter groups, as for each worker.
        optimizers: of the w workers, with equal groups.
    """

    def __init__(
        self, make: Callable[[list[dict[str, Any]]], Optimizer], optimizers: Sequence[Optimizer]
    ) -> None:
        self._optimizers = tuple(optimizers)
        groups = zip(*(optimizer.param_groups for optimizer in optimizers), strict=True)
        self._joint = make([_joined(same) for same in groups])
        self.link()

    def link(self) -> None:
        """Takes over the workers' states; call it after one of them was loaded."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._joint.state[parameter] = optimizer.state[parameter]
        self._alike = False

    def step(self, learning_rate: float) -> bool:
        """Steps all workers; returns `False` and does nothing if their states differ in kind.

        They differ if only some workers have taken their first step.
        """
        if not self._alike and len({frozenset(state) for state in self._joint.state.values()}) > 1:
            return False
        self._alike = True
        for group in self._joint.param_groups:
            group["lr"] = learning_rate
        self._joint.step()
        return True


def _joined(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    parameters = [parameter for group in groups for parameter in group["params"]]
    return {"params": parameters, "weight_decay": groups[0]["weight_decay"]}
