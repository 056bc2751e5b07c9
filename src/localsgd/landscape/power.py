"""Eigenvalues of the largest magnitude by power iteration with deflation, as in the paper.

The paper stops at a relative change of 1e-4 of the Rayleigh quotient (its appendix on the Hessian's
spectrum). That test alone can stop too early if two eigenvalues are close, so the residual is
reported with each value, and can be asked for.
"""

from __future__ import annotations

import torch
from torch import Tensor

from localsgd.landscape.announce import Progress, silent
from localsgd.landscape.operator import Counted, Operator, gaussian, seeded
from localsgd.landscape.spectrum import Spectrum


def power_iteration(
    operator: Operator,
    count: int = 1,
    *,
    tolerance: float = 1e-4,
    residual_tolerance: float | None = None,
    max_products: int = 1000,
    seed: int = 0,
    progress: Progress = silent,
) -> Spectrum:
    """The `count` eigenvalues of the largest |value|, one after the other, sorted falling.

    v <- P A v / ||P A v||, t = v'Av, P the projection off the vectors found before, applied before
    and after the product. Stops when |t - t_before| <= tolerance |t|, and, if given, when
    ||A v - t v|| <= residual_tolerance |t|.

    Args:
      max_products: for each eigenvalue.
    """
    counted = Counted(operator)
    generator = seeded(seed)
    found = operator.like.new_empty(0, operator.n)
    values, residuals, converged = [], [], []
    for index in range(min(count, operator.n)):
        start = gaussian(operator, 1, generator)[0]
        value, residual, done, vector = _one(
            counted, found, start, tolerance, residual_tolerance, max_products
        )
        values.append(value)
        residuals.append(residual)
        converged.append(done)
        found = torch.cat([found, vector.unsqueeze(0)])
        progress("power iteration", index + 1, count)
    order = sorted(range(len(values)), key=lambda i: -values[i])
    return Spectrum(
        values=tuple(values[i] for i in order),
        residuals=tuple(residuals[i] for i in order),
        converged=tuple(converged[i] for i in order),
        products=counted.products,
        method="power iteration",
        vectors=found[order],
    )


def _one(
    operator: Operator,
    found: Tensor,
    vector: Tensor,
    tolerance: float,
    residual_tolerance: float | None,
    max_products: int,
) -> tuple[float, float, bool, Tensor]:
    vector = _off(vector, found)
    vector = vector / vector.norm()
    before, value, residual = float("inf"), 0.0, float("inf")
    for _ in range(max_products):
        image = operator.apply(vector.unsqueeze(0))[0]
        value = float(vector.double() @ image.double())
        residual = float((image - value * vector).norm())
        settled = abs(value - before) <= tolerance * abs(value)
        if residual_tolerance is not None:
            settled = settled and residual <= residual_tolerance * abs(value)
        if settled:
            return value, residual, True, vector
        image = _off(image, found)
        length = float(image.norm())
        if length == 0:  # nothing but zeros is left
            return 0.0, residual, True, vector
        vector, before = image / length, value
    return value, residual, False, vector


def _off(vector: Tensor, found: Tensor) -> Tensor:
    """`vector` without its parts along the orthonormal rows `found`, projected twice."""
    for _ in range(2):
        vector = vector - (found @ vector) @ found
    return vector
