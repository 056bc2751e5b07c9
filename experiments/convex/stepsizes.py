"""The paper's two step sizes, gamma_t = 32 c and min(32, c n / (t + 1)), c = 2^i, i whole.

t counts the local steps of a worker from 0, on through the rounds (Stich 2018; the paper doesn't
say).

R: columns, the runs that are simulated together
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from experiments.logistic.rows import Floats

Family: TypeAlias = Literal["constant", "decaying"]
FAMILIES: tuple[Family, ...] = ("constant", "decaying")
_HIGHEST = 32.0


@dataclass(frozen=True, order=True)
class StepSize:
    """One step size of the search.

    Args:
        family: `"constant"` for 32 c, `"decaying"` for min(32, c n / (t + 1)).
        exponent: i, of c = 2^i.
    """

    family: Family
    exponent: int


class Gammas:
    """gamma_t of several step sizes: `Gammas(sizes, n)(t)` is [R]."""

    def __init__(self, sizes: Sequence[StepSize], examples: int) -> None:
        scale = np.array([2.0**size.exponent for size in sizes])
        constant = np.array([size.family == "constant" for size in sizes], dtype=bool)
        self._highest = np.where(constant, _HIGHEST * scale, _HIGHEST)
        self._falling = np.where(constant, np.inf, scale * examples)

    def __call__(self, step: int) -> Floats:
        return np.minimum(self._highest, self._falling / (step + 1))
