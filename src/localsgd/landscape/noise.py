"""The noise of stochastic gradients, for a worker's batch and for the averaged one (section 5).

Letters: n chosen scalars, N samples of the data set, B of a batch, K workers, b of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from localsgd.basics.units import plural
from localsgd.errors import UserError
from localsgd.landscape.group import summed
from localsgd.landscape.objective import Objective, mean_of


@dataclass(frozen=True)
class GradientNoise:
    """Traces at one point, from all samples' gradients g_i and their mean g.

    uncentred: tr K(w) = mean ||g_i||^2, the paper's; centred: tr Cov = mean ||g_i - g||^2;
    gradient: ||g||^2; samples: N.
    """

    uncentred: float
    centred: float
    gradient: float
    samples: int

    def of_batch(self, batch: int) -> float:
        """E ||batch mean - g||^2 for B samples without replacement, exactly:
        (N - B) / (N - 1) / B tr Cov."""
        self._fits(batch)
        n = self.samples
        return (n - batch) / max(1, n - 1) / batch * self.centred

    def in_paper(self, batch: int) -> float:
        """(1/B - 1/N) tr K(w), the paper's approximation (section 5), which is uncentred."""
        self._fits(batch)
        return (1 / batch - 1 / self.samples) * self.uncentred

    def step(self, local_batch: int, workers: int) -> Step:
        """The noise of one worker's step against that of the average of K workers' first step.

        The paper has "K Sigma instead of Sigma" for local steps: `ratio` is that K, and is larger
        where K B_loc is no longer small against N. The average of the workers' (disjoint) batches
        has the noise of the large batch again, to first order in the learning rate.
        """
        worker = self.of_batch(local_batch)
        averaged = self.of_batch(local_batch * workers)
        ratio = worker / averaged if averaged > 0 else None
        return Step(worker, averaged, ratio, workers, local_batch)

    def record(self, **extra: Any) -> dict[str, Any]:
        return {"kind": "gradient noise", **asdict(self), **extra}

    def _fits(self, batch: int) -> None:
        if not 1 <= batch <= self.samples:
            raise UserError(
                f"a batch of {batch} cannot be drawn from {plural(self.samples, 'sample')} without "
                f"replacement; give 1 to {self.samples} (over all workers together)"
            )


@dataclass(frozen=True)
class Step:
    """Noise traces of one step; `ratio` is None if the averaged batch is the whole data set."""

    worker: float
    averaged: float
    ratio: float | None
    workers: int
    local_batch: int

    def record(self, **extra: Any) -> dict[str, Any]:
        return {"kind": "step noise", **asdict(self), **extra}


def gradient_noise(
    objective: Objective,
    weights: Tensor | None = None,
    *,
    chunk: int = 16,
) -> GradientNoise:
    """Traces over all samples of the objective's data at `weights` [n] (by default its own).

    Args:
      chunk: samples whose gradients are held at once, chunk * n values.
    """
    weights = objective.weights if weights is None else weights
    total = weights.new_zeros(objective.n + 3, dtype=torch.float64)  # sum g, sum ||g||^2, N, loss
    with objective.running():
        for gradients, losses in _per_sample(objective, weights, chunk):
            total[:-3] += gradients.sum(0)
            total[-3] += gradients.double().square().sum()
            total[-2] += gradients.shape[0]
            total[-1] += losses.sum()
    summed(total, objective.group)
    samples = int(total[-2])
    means = mean_of(total)
    uncentred, squared = float(means[-1]), float(means[:-1].square().sum())
    return GradientNoise(uncentred, max(0.0, uncentred - squared), squared, samples)


def _per_sample(
    objective: Objective, weights: Tensor, chunk: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Gradients [b, n] and losses [b] of single samples, chunk by chunk."""
    chosen = objective.layout.named(weights)

    def one(named: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = objective.batch_loss(named, x.unsqueeze(0), y.unsqueeze(0))
        return loss, loss.detach()

    gradient = vmap(grad(one, has_aux=True), in_dims=(None, 0, 0), randomness="same")
    for batch in objective.batches():
        if not isinstance(batch.x, Tensor) or not isinstance(batch.y, Tensor):
            raise UserError("gradient noise needs batches of two tensors (x, y), samples first")
        for x, y in zip(batch.x.split(chunk), batch.y.split(chunk), strict=True):
            parts, losses = gradient(chosen, x, y)
            rows = [parts[name].flatten(1) for name in objective.layout.names]
            yield torch.cat(rows, dim=1), losses
