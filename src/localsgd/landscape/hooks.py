"""Measurements during a run: the paper's curves of lambda_max by epoch, and of gradient noise.

A hook is called as `hook(epoch, model)` with the model to look at (the averaged one), as often as
the loop likes; it measures when the next whole multiple of `every_epochs` has been reached, and
keeps its records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, final

from torch import nn
from torch.distributed import ProcessGroup

from localsgd.errors import UserError
from localsgd.landscape.batches import Data
from localsgd.landscape.hessian import Hessian
from localsgd.landscape.lanczos import lanczos
from localsgd.landscape.noise import gradient_noise
from localsgd.landscape.objective import Loss, Objective
from localsgd.landscape.power import power_iteration
from localsgd.landscape.statistics import estimated, kept

Records: TypeAlias = list[dict[str, Any]]
Measure: TypeAlias = Callable[[nn.Module], Records]


@final
class Every:
    """Calls `measure(model)` once for each multiple of `every_epochs` that is reached."""

    def __init__(self, measure: Measure, every_epochs: float = 1.0, *, start: float = 0.0):
        if every_epochs <= 0:
            raise UserError(f"cannot measure every {every_epochs} epochs; give more than 0")
        self.measure, self.every_epochs = measure, every_epochs
        self.records: Records = []
        self._next = start

    def __call__(self, epoch: float, model: nn.Module, /, **extra: Any) -> Records:
        """The new records, each with its epoch and `extra`; none if it isn't time yet."""
        if epoch < self._next - 1e-9:
            return []
        while self._next <= epoch + 1e-9:
            self._next += self.every_epochs
        new = [{**record, "epoch": epoch, **extra} for record in self.measure(model)]
        self.records += new
        return new


def largest_eigenvalue(
    loss: Loss,
    data: Mapping[str, Data],
    *,
    method: str = "lanczos",
    tolerance: float | None = None,
    estimate_on: Data | None = None,
    group: ProcessGroup | None = None,
) -> Measure:
    """A measure of the Hessian's largest eigenvalue on each data set.

    Args:
      method: "lanczos" (largest by value) or "power" (by magnitude, the paper's, to 1e-4).
      estimate_on: data for batch-norm statistics; by default the model's own are kept.
    """
    if method not in ("lanczos", "power"):
        raise UserError(f"there is no method {method!r}; take 'lanczos' or 'power'")

    def measure(model: nn.Module) -> Records:
        statistics = (
            kept(model) if estimate_on is None else estimated(model, estimate_on, group=group)
        )
        records = []
        for name, pairs in data.items():
            objective = Objective(model, loss, pairs, statistics=statistics, group=group)
            hessian = Hessian(objective)
            if method == "lanczos":
                found = lanczos(hessian, 1, tolerance=tolerance or 1e-3)
            else:
                found = power_iteration(hessian, 1, tolerance=tolerance or 1e-4)
            records.append(
                {
                    "kind": "largest eigenvalue",
                    "data": name,
                    "largest": found.largest,
                    "residual": found.residuals[0],
                    "products": found.products,
                    "method": found.method,
                    "statistics": statistics.kind,
                }
            )
        return records

    return measure


def step_noise(
    loss: Loss,
    data: Data,
    *,
    local_batch: int,
    workers: int,
    population: int | None = None,
    chunk: int = 16,
    group: ProcessGroup | None = None,
) -> Measure:
    """A measure of the noise of a worker's step and of the averaged one (section 5).

    Args:
      population: N, from which batches are drawn, where `data` are some of it.
    """

    def measure(model: nn.Module) -> Records:
        found = gradient_noise(Objective(model, loss, data, group=group), chunk=chunk)
        if population is not None:
            found = replace(found, samples=population)
        step = found.step(local_batch, workers)
        return [step.record(uncentred=found.uncentred, centred=found.centred)]

    return measure
