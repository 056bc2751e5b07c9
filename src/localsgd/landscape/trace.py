"""The trace of an operator from random products: Hutchinson, and Hutch++.

Letters: n dimension, s probes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from localsgd.errors import UserError
from localsgd.landscape.operator import Operator, product, rademacher, seeded


@dataclass(frozen=True)
class Estimate:
    """A random estimate with its standard error (nan for one probe), and the products it took."""

    value: float
    standard_error: float
    products: int
    method: str

    def record(self, **extra: Any) -> dict[str, Any]:
        return {
            "kind": "trace",
            "method": self.method,
            "value": self.value,
            "standard_error": self.standard_error,
            "products": self.products,
            **extra,
        }


def hutchinson(
    operator: Operator, products: int = 30, *, at_once: int = 10, seed: int = 0
) -> Estimate:
    """tr A as the mean of z'Az over sign vectors z (Hutchinson 1990).

    The variance of one probe is 2 (||A||_F^2 - sum_i A_ii^2).
    """
    _enough(products, 1)
    probes = rademacher(operator, products, seeded(seed))
    forms = torch.cat([_forms(operator, z) for z in probes.split(at_once)])
    return Estimate(*_mean(forms), products, "hutchinson")


def hutch_plus_plus(
    operator: Operator, products: int = 30, *, at_once: int = 10, seed: int = 0
) -> Estimate:
    """tr A from a third of the products for a sketch of A's range, a third for the trace on it,
    and a third for Hutchinson on the rest (Meyer, Musco, Musco and Woodruff 2021, algorithm 1).

    The error stated is that of the rest, the only random part once the range is fixed.
    """
    _enough(products, 3)
    third = min(products // 3, operator.n)
    signs = rademacher(operator, products - third, seeded(seed))
    sketch, probes = signs[:third], signs[third : third + max(1, products - 2 * third)]
    images = torch.cat([product(operator, z) for z in sketch.split(at_once)])
    q = torch.linalg.qr(images.T)[0].T
    inside = torch.cat([_forms(operator, rows) for rows in q.split(at_once)]).sum()
    if q.shape[0] == operator.n:
        return Estimate(float(inside), 0.0, 2 * third, "hutch++")
    rest = probes - (probes @ q.T) @ q
    value, error = _mean(torch.cat([_forms(operator, z) for z in rest.split(at_once)]))
    return Estimate(float(inside) + value, error, 2 * third + len(probes), "hutch++")


def _forms(operator: Operator, vectors: Tensor) -> Tensor:
    """v'Av of each row, in float64."""
    return (vectors.double() * product(operator, vectors).double()).sum(1)


def _mean(forms: Tensor) -> tuple[float, float]:
    error = float(forms.std() / len(forms) ** 0.5) if len(forms) > 1 else float("nan")
    return float(forms.mean()), error


def _enough(products: int, least: int) -> None:
    if products < least:
        raise UserError(f"a trace from {products} products is not possible; give {least} or more")
