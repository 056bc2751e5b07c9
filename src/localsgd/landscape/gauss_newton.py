"""Gauss-Newton matrix and empirical Fisher: J' A J with J the outputs' Jacobian in the weights.

Gauss-Newton takes for A the Hessian of the loss in the outputs (Schraudolph 2002); the empirical
Fisher takes g_i g_i', g_i the gradient of sample i's loss in its outputs, so that it is
(1/N) sum_i grad f_i grad f_i' without forming a sample's gradient. Both are positive semidefinite
for convex losses, and add over batches as the Hessian does.

Letters: n chosen scalars, k vectors at once, b samples of a batch, o outputs a sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, final

from torch import Tensor
from torch.func import grad, jvp, vjp

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.landscape.batches import Batch
from localsgd.landscape.group import summed
from localsgd.landscape.objective import Objective, mean_of, scalar
from localsgd.landscape.operator import Operator


@final
class OutputCurvature(Operator):
    """J' A J over the data; built by `gauss_newton` or `empirical_fisher`.

    `middle(loss_of, z, u, samples)` gives A u for outputs z [b, ...] and tangents u of its shape.
    """

    def __init__(
        self,
        objective: Objective,
        middle: Callable[[Callable[[Tensor], Tensor], Tensor, Tensor, int], Tensor],
    ):
        self.objective, self._middle, self.like = objective, middle, objective.weights
        self._chosen = objective.layout.named(objective.weights)

    def apply(self, vectors: Tensor) -> Tensor:
        """[k, n] -> [k, n]; one pass over the data and one reduction for all k."""
        k, n = vectors.shape
        total = vectors.new_zeros(k * n + 2)
        with self.objective.running():
            for batch in self.objective.batches():
                loss = self._add(total[:-2].view(k, n), vectors, batch)
                total[-2] += batch.samples
                total[-1] += batch.samples * loss
        return mean_of(summed(total, self.objective.group)).view(k, n)

    def _add(self, products: Tensor, vectors: Tensor, batch: Batch) -> Tensor:
        layout = self.objective.layout

        def outputs(chosen: dict[str, Tensor]) -> Tensor:
            z = self.objective.output(chosen, batch.x)
            if not isinstance(z, Tensor):
                raise UserError(
                    f"the model's output is a {type(z).__name__}; Gauss-Newton and Fisher "
                    "need one tensor [samples, ...]"
                )
            return z

        def loss_of(z: Tensor) -> Tensor:
            return scalar(self.objective.loss(z, batch.y))

        at = vjp(outputs, self._chosen)
        z, pull_back = at[0].detach(), at[1]
        for row, vector in zip(products, vectors, strict=True):
            tangent = forward(outputs, self._chosen, layout.named(vector))
            (parts,) = pull_back(self._middle(loss_of, z, tangent, batch.samples))
            row.add_(layout.flat(parts), alpha=batch.samples)
        return loss_of(z)


def gauss_newton(objective: Objective) -> OutputCurvature:
    """The generalised Gauss-Newton matrix of the mean loss."""

    def middle(
        loss_of: Callable[[Tensor], Tensor], z: Tensor, tangent: Tensor, samples: int
    ) -> Tensor:
        return forward(grad(loss_of), z, tangent)

    return OutputCurvature(objective, middle)


def empirical_fisher(objective: Objective) -> OutputCurvature:
    """(1/N) sum_i grad f_i grad f_i', the uncentred covariance K(w) of the paper's section 5.

    The loss has to be the mean of samples' losses, with samples along the outputs' first dimension.
    """

    def middle(
        loss_of: Callable[[Tensor], Tensor], z: Tensor, tangent: Tensor, samples: int
    ) -> Tensor:
        if z.shape[0] != samples:
            raise UserError(
                f"the outputs have shape {list(z.shape)} for {plural(samples, 'sample')}; the "
                "empirical Fisher needs a first dimension of samples"
            )
        own = samples * grad(loss_of)(z)  # the gradient of each sample's own loss
        along = (own * tangent).flatten(1).sum(1)
        return own * along.view(-1, *[1] * (z.ndim - 1)) / samples

    return OutputCurvature(objective, middle)


def forward(function: Callable[[Any], Tensor], at: Any, tangent: Any) -> Tensor:
    """The derivative of `function` along a tangent, by forward-mode differentiation."""
    with warnings.catch_warnings():
        # torch scripts its own forward rules on first use, and deprecates scripting.
        warnings.filterwarnings("ignore", "`torch.jit.script` is", DeprecationWarning)
        return jvp(function, (at,), (tangent,))[1]
