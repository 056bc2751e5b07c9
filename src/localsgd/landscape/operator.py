"""Symmetric linear operators: the interface between curvature and the algorithms on it.

Letters: n dimension, k vectors at once.
"""

from __future__ import annotations

from typing import Protocol, final

import torch
from torch import Tensor

from localsgd.errors import UserError


class Operator(Protocol):
    """A symmetric matrix [n, n] known by its products. `like` [..., n] has its dtype and device."""

    like: Tensor

    @property
    def n(self) -> int:
        return self.like.shape[-1]

    def apply(self, vectors: Tensor) -> Tensor:
        """[k, n] -> [k, n]: each row times the matrix."""
        ...


@final
class Matrix(Operator):
    """A dense symmetric matrix [n, n] as an operator."""

    def __init__(self, matrix: Tensor):
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise UserError(f"a matrix of shape {list(matrix.shape)} is not square")
        self.like = matrix

    def apply(self, vectors: Tensor) -> Tensor:
        return vectors @ self.like


@final
class Scaled(Operator):
    """D A D for a diagonal D given as a vector [n]: curvature in rescaled coordinates."""

    def __init__(self, operator: Operator, scale: Tensor):
        self.operator, self.scale, self.like = operator, scale, operator.like

    def apply(self, vectors: Tensor) -> Tensor:
        return self.operator.apply(vectors * self.scale) * self.scale


@final
class Counted(Operator):
    """Counts products (vectors, not calls) of the operator inside."""

    def __init__(self, operator: Operator):
        self.operator, self.products, self.like = operator, 0, operator.like

    def apply(self, vectors: Tensor) -> Tensor:
        self.products += vectors.shape[0]
        return product(self.operator, vectors)


def product(operator: Operator, vectors: Tensor) -> Tensor:
    """[k, n] -> [k, n], as `apply`.

    Raises:
        UserError: it is not finite. An algorithm would return eigenvalues nevertheless.
    """
    images = operator.apply(vectors)
    if not bool(images.isfinite().all()):
        raise UserError(
            "a product with the curvature is not finite, though the loss is: its second derivative "
            "is infinite here, or beyond the weights' dtype; try float64"
        )
    return images


def dense(operator: Operator, at_once: int = 64) -> Tensor:
    """The whole matrix [n, n], by n products; for small n."""
    identity = torch.eye(operator.n, dtype=operator.like.dtype, device=operator.like.device)
    return torch.cat([operator.apply(rows) for rows in identity.split(at_once)])


def gaussian(operator: Operator, count: int, generator: torch.Generator) -> Tensor:
    """Standard normal values [count, n], the same on every device and process."""
    values = torch.randn(count, operator.n, generator=generator, dtype=torch.float64)
    return values.to(operator.like)


def rademacher(operator: Operator, count: int, generator: torch.Generator) -> Tensor:
    """Random signs -1 and +1, [count, n], the same on every device and process."""
    bits = torch.randint(0, 2, (count, operator.n), generator=generator, dtype=torch.int8)
    return (2 * bits - 1).to(operator.like)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
