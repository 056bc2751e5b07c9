"""Checks that several optimizers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from localsgd.errors import UserError


def evaluated(closure: Callable[[], Any] | None) -> Any:
    """The closure's loss, with gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def check_momentum(momentum: float, what: str = "a momentum") -> None:
    """Raises unless the momentum is in [0, 1)."""
    if not 0 <= momentum < 1:
        raise UserError(f"{what} of {momentum} grows without bound; give one in [0, 1)")


def check_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise UserError(f"{name} = {value!r} is out of range; give a number >= 0")
