"""What an eigenvalue computation gives: values with their residuals, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Spectrum:
    """Some eigenvalues of a symmetric matrix A.

    values: the k values, falling; residuals: ||A v - value v|| of each, v of length 1: an
    eigenvalue of A lies at least that near. vectors [k, n] are the unit eigenvectors. `converged`
    says of each whether its tolerance was met; products counts vectors multiplied by A.
    """

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    converged: tuple[bool, ...]
    products: int
    method: str
    vectors: Tensor = field(repr=False)

    @property
    def largest(self) -> float:
        return self.values[0]

    def record(self, **extra: Any) -> dict[str, Any]:
        """The numbers, ready for a JSON line."""
        return {
            "kind": "eigenvalues",
            "method": self.method,
            "values": list(self.values),
            "residuals": list(self.residuals),
            "converged": list(self.converged),
            "products": self.products,
            **extra,
        }
