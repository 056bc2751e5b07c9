"""Figures of sharpness that a rescaling of the weights does not change.

A network computes the same function after some rescalings of its weights: of a filter that batch
norm follows, or of whole layers with ReLU. Its Hessian changes at will with them (Dinh et al.
2017). These figures measure curvature relative to the size of the weights.

Letters: n chosen scalars.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.landscape.announce import Progress, silent
from localsgd.landscape.directions import filter_norms
from localsgd.landscape.hessian import Hessian
from localsgd.landscape.lanczos import Spectrum, lanczos
from localsgd.landscape.objective import Objective
from localsgd.landscape.operator import Scaled


@dataclass(frozen=True)
class Sharpness:
    """Plain and scale-free figures of one model.

    largest: lambda_max of the Hessian; times_norm: lambda_max ||w||^2, unchanged when all weights
    are rescaled together; filter_wise: lambda_max of D H D, D the norm of each scalar's filter,
    unchanged when a filter is that batch norm follows; worst_rise: the largest rise of the loss
    found in the ball ||v|| <= radius ||w||; filter_worst_rise: in the ball
    ||v / D|| <= radius sqrt(filters); residual: the larger one of the two eigenvalues', relative to
    its own.
    """

    largest: float
    times_norm: float
    filter_wise: float
    worst_rise: float
    filter_worst_rise: float
    radius: float
    norm: float
    residual: float

    def record(self, **extra: Any) -> dict[str, Any]:
        return {"kind": "sharpness", **asdict(self), **extra}


def sharpness(
    objective: Objective,
    *,
    radius: float = 0.005,
    ascent_steps: int = 10,
    tolerance: float = 1e-3,
    seed: int = 0,
    progress: Progress = silent,
) -> Sharpness:
    """All figures of `Sharpness` at the objective's weights."""
    hessian = Hessian(objective)
    norms = filter_norms(objective.weights, objective.layout)
    plain = lanczos(hessian, 1, tolerance=tolerance, seed=seed, progress=progress)
    largest = plain.largest
    scaled = Scaled(hessian, norms)
    filter_wise = lanczos(scaled, 1, tolerance=tolerance, seed=seed, progress=progress)
    norm = float(objective.weights.norm())
    ball = radius * norm
    filters = sum(rows.shape[0] for _, rows in objective.layout.filters(objective.weights))
    return Sharpness(
        largest=largest,
        times_norm=largest * norm**2,
        filter_wise=filter_wise.largest,
        worst_rise=worst_rise(objective, ball, steps=ascent_steps),
        filter_worst_rise=worst_rise(
            objective, radius * filters**0.5, steps=ascent_steps, scale=norms
        ),
        radius=radius,
        norm=norm,
        residual=max(map(_relative_residual, (plain, filter_wise))),
    )


def _relative_residual(found: Spectrum) -> float:
    return found.residuals[0] / (abs(found.values[0]) or 1.0)


def worst_rise(
    objective: Objective, radius: float, *, steps: int = 10, scale: Tensor | None = None
) -> float:
    """A lower bound of max L(w + v) - L(w) over ||v / scale|| <= radius, as SAM's inner problem.

    The first step is SAM's, to the sphere along the scaled gradient (Foret et al. 2021, eq. 2;
    scaled: Kwon et al. 2021, eq. 7); further ones ascend and project on the ball. The best point
    seen counts, so more steps never give less.

    Args:
      radius: of the ball, in units of `scale`; not negative.
      scale: [n], not negative; entries of 0 stay where they are. By default all 1.
    """
    if radius < 0 or steps < 1:
        raise UserError(
            f"a ball of radius {radius} in {plural(steps, 'step')}: give radius >= 0, steps >= 1"
        )
    scale = torch.ones_like(objective.weights) if scale is None else scale
    start = objective.score().loss
    best, v = 0.0, torch.zeros_like(objective.weights)  # v in units of scale
    for step in range(steps):
        ascent = scale * objective.gradient(objective.weights + scale * v)
        length = float(ascent.norm())
        if length == 0:
            break
        v = v + ascent * (radius / length / (1 + step) ** 0.5)
        v = v * min(1.0, radius / max(float(v.norm()), 1e-300))
        rise = objective.score(objective.weights + scale * v).loss - start
        best = rise if math.isnan(rise) else max(best, rise)
        if not math.isfinite(best):
            break
    return best
