"""The spectral density by stochastic Lanczos quadrature.

From each random unit vector v, m steps of Lanczos give a Gauss quadrature of the measure
sum_i (v'u_i)^2 delta(t - lambda_i): nodes are the eigenvalues of the tridiagonal T, weights the
squared first components of T's eigenvectors. It is exact for polynomials up to degree 2m - 1
(Golub and Meurant 1994; Ubaru, Chen and Saad 2017). All vectors advance together.

Letters: n dimension, s start vectors, m steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.landscape.announce import Progress, silent
from localsgd.landscape.operator import Operator, product, rademacher, seeded


@dataclass(frozen=True)
class Density:
    """Quadrature nodes and weights [s, m]; each row's weights add to 1."""

    nodes: Tensor = field(repr=False)
    weights: Tensor = field(repr=False)
    products: int
    n: int

    def moment(self, power: int) -> tuple[float, float]:
        """(estimate, standard error) of tr(A^power) / n."""
        rows = (self.weights * self.nodes**power).sum(1)
        error = float(rows.std() / len(rows) ** 0.5) if len(rows) > 1 else float("nan")
        return float(rows.mean()), error

    def share(self, low: float, high: float) -> float:
        """The estimated share of eigenvalues in [low, high)."""
        inside = (self.nodes >= low) & (self.nodes < high)
        return float((self.weights * inside).sum(1).mean())

    def curve(self, points: int = 400, width: float = 0.01) -> tuple[Tensor, Tensor]:
        """(t, density) with each node a Gaussian of standard deviation `width` times the range."""
        low, high = float(self.nodes.min()), float(self.nodes.max())
        sigma = width * ((high - low) or 1.0)
        t = torch.linspace(low - 4 * sigma, high + 4 * sigma, points, dtype=torch.float64)
        bells = torch.exp(-0.5 * ((t[:, None, None] - self.nodes) / sigma) ** 2)
        return t, (bells * self.weights).sum(2).mean(1) / (sigma * (2 * torch.pi) ** 0.5)

    def record(self, **extra: Any) -> dict[str, Any]:
        return {
            "kind": "density",
            "nodes": self.nodes.tolist(),
            "weights": self.weights.tolist(),
            "products": self.products,
            "n": self.n,
            **extra,
        }


def spectral_density(
    operator: Operator,
    steps: int = 40,
    starts: int = 4,
    *,
    vectors: Tensor | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Density:
    """The density of A's eigenvalues from `starts` random sign vectors, or from `vectors` [s, n].

    Full re-orthogonalisation. Holds steps * starts vectors [n].
    """
    if steps < 1 or starts < 1:
        raise UserError(
            f"a density from {plural(starts, 'start')} of {plural(steps, 'step')} is empty; give 1 "
            "or more"
        )
    first = rademacher(operator, starts, seeded(seed)) if vectors is None else vectors
    steps = min(steps, operator.n)
    current = first / first.norm(dim=1, keepdim=True)
    s = current.shape[0]
    basis = current.new_empty(steps, s, operator.n)
    alphas = torch.zeros(s, steps, dtype=torch.float64)
    betas = torch.zeros(s, steps, dtype=torch.float64)
    for step in range(steps):
        basis[step] = current
        images = product(operator, current)
        alphas[:, step] = (images.double() * current.double()).sum(1).cpu()
        scale = images.norm(dim=1)
        images = _orthogonal(images, basis[: step + 1])
        length = images.norm(dim=1)
        # At rounding level the start's Krylov space is complete: the quadrature is exact already.
        alive = length > 100 * torch.finfo(length.dtype).eps * scale
        betas[:, step] = torch.where(alive, length, 0.0).double().cpu()
        current = torch.where(alive, 1 / length.clamp(min=1e-300), 0.0).unsqueeze(1) * images
        progress("spectral density", step + 1, steps)
    return Density(*_quadrature(alphas, betas[:, : steps - 1]), steps * s, operator.n)


def _orthogonal(images: Tensor, basis: Tensor) -> Tensor:
    """Images [s, n] without their parts in each start's own basis [m, s, n], projected twice."""
    for _ in range(2):
        along = torch.einsum("msn,sn->ms", basis, images)
        images = images - torch.einsum("ms,msn->sn", along, basis)
    return images


def _quadrature(alphas: Tensor, betas: Tensor) -> tuple[Tensor, Tensor]:
    """Nodes and weights [s, m] of tridiagonal matrices (diagonal [s, m], beside it [s, m - 1]).

    A beta of 0 cuts the matrix: what comes after has no first component and so no weight.
    """
    matrices = torch.diag_embed(alphas)
    if betas.shape[1]:
        matrices = matrices + torch.diag_embed(betas, 1) + torch.diag_embed(betas, -1)
    nodes, vectors = torch.linalg.eigh(matrices)
    return nodes, vectors[:, 0, :] ** 2
