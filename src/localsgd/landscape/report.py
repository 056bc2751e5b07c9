"""A whole evaluation in one call: records for one model, or for several that are compared.

This is what a command line calls: models, loss and data in, records out, nothing read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeAlias

from torch import nn
from torch.distributed import ProcessGroup

from localsgd.errors import UserError
from localsgd.landscape.announce import Progress, labelled, silent
from localsgd.landscape.batches import Data
from localsgd.landscape.density import spectral_density
from localsgd.landscape.directions import shared_directions
from localsgd.landscape.figures import draw
from localsgd.landscape.gauss_newton import empirical_fisher, gauss_newton
from localsgd.landscape.hessian import Hessian
from localsgd.landscape.interpolation import interpolate
from localsgd.landscape.lanczos import lanczos
from localsgd.landscape.noise import gradient_noise
from localsgd.landscape.objective import Loss, Objective
from localsgd.landscape.operator import Operator
from localsgd.landscape.parameters import same_architecture
from localsgd.landscape.plane import plane
from localsgd.landscape.power import power_iteration
from localsgd.landscape.records import write_records
from localsgd.landscape.sharpness import sharpness
from localsgd.landscape.statistics import Statistics, batch_norms, estimated, kept
from localsgd.landscape.surface import curve, spread, surface
from localsgd.landscape.trace import hutch_plus_plus

Records: TypeAlias = list[dict[str, Any]]


@dataclass(frozen=True)
class Plan:
    """What to evaluate; 0 (or None) leaves a part out.

    top, bottom: eigenvalues of each end; curvature and method: of which matrix, and how;
    trace_products; density_steps from density_starts vectors; sharpness: the scale-free figures;
    directions: shared, filter-normalised, of curve_points from -reach to reach; surface_points:
    a side of the surface over the first two directions; line_points: between two models, from
    -0.5 to 1.5; plane_points: a side of the plane through three; noise: (local batch, workers);
    population: of which batches are drawn, where the data are some of it; statistics: batch-norm
    ones kept, or estimated (on the data called "train" unless `estimate_on` is given).

    Raises:
        UserError: power iteration is asked for the smallest eigenvalues.
    """

    top: int = 10
    bottom: int = 0
    curvature: Literal["hessian", "gauss-newton", "fisher"] = "hessian"
    method: Literal["lanczos", "power"] = "lanczos"
    tolerance: float = 1e-3
    trace_products: int = 0
    density_steps: int = 0
    density_starts: int = 2
    sharpness: bool = False
    directions: int = 0
    curve_points: int = 21
    reach: float = 1.0
    surface_points: int = 0
    line_points: int = 0
    plane_points: int = 0
    noise: tuple[int, int] | None = None
    population: int | None = None
    statistics: Literal["kept", "estimated"] = "kept"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method == "power" and self.bottom:
            raise UserError(
                f"power iteration finds no smallest eigenvalues, and bottom is {self.bottom}; take "
                "lanczos"
            )


def evaluate(
    model: nn.Module,
    loss: Loss,
    data: Mapping[str, Data],
    plan: Plan | None = None,
    *,
    name: str = "model",
    parameters: str | tuple[str, ...] | None = None,
    estimate_on: Data | None = None,
    group: ProcessGroup | None = None,
    progress: Progress = silent,
) -> Records:
    """Records of one model on each data set, as {"train": batches, "test": batches}.

    Args:
        estimate_on: data for batch-norm statistics that the plan wants estimated, such as training
            data augmented as in training; the data called "train" if not given.
    """
    plan = plan or Plan()
    estimate_on = data.get("train") if estimate_on is None else estimate_on
    statistics = _statistics(model, data, plan, estimate_on, group)
    records: Records = []
    for data_name, pairs in data.items():
        objective = Objective(
            model, loss, pairs, parameters=parameters, statistics=statistics, group=group
        )
        about = {"model": name, "data": data_name, "statistics": statistics.kind}
        told = labelled(progress, f"{name}, {data_name}")
        score = objective.score()
        records.append({"kind": "score", **vars(score), **about})
        records += _curvature(objective, plan, about, told)
        records += _shape(objective, plan, about, told)
    return records


def compare(
    models: Mapping[str, nn.Module],
    loss: Loss,
    data: Mapping[str, Data],
    plan: Plan | None = None,
    *,
    noise: Mapping[str, tuple[int, int]] | None = None,
    parameters: str | tuple[str, ...] | None = None,
    estimate_on: Data | None = None,
    group: ProcessGroup | None = None,
    progress: Progress = silent,
) -> Records:
    """Records of several models of one architecture: each by itself along shared directions,
    the line between every two, the plane through every three.

    Args:
        noise: B and K of each model by its name, in place of the plan's, which are for all.
        estimate_on: as for `evaluate`.
    """
    plan = plan or Plan()
    estimate_on = data.get("train") if estimate_on is None else estimate_on
    first = next(iter(models.values()), None)
    if first is None:
        raise UserError("there are no models to compare; give at least one, by name")
    records: Records = []
    for name, model in models.items():
        same_architecture(first, model)
        own = plan if noise is None else replace(plan, noise=noise[name])
        records += evaluate(
            model, loss, data, own, name=name, parameters=parameters, estimate_on=estimate_on,
            group=group, progress=progress,
        )  # fmt: skip
    if plan.line_points:
        records += _lines(models, loss, data, plan, estimate_on, group, progress)
    if plan.plane_points:
        records += _planes(models, loss, data, plan, estimate_on, group, progress)
    return records


def write_report(records: Records, folder: str | Path, *, figures: bool = True) -> list[Path]:
    """Write `landscape.jsonl` and the records' figures into a folder; gives the files."""
    folder = Path(folder)
    lines = write_records(folder / "landscape.jsonl", records)
    return [lines, *(draw(records, folder) if figures else [])]


def _statistics(
    model: nn.Module,
    data: Mapping[str, Data],
    plan: Plan,
    estimate_on: Data | None,
    group: ProcessGroup | None,
) -> Statistics:
    if plan.statistics == "kept":
        return kept(model)
    if estimate_on is None:
        raise UserError(
            "batch-norm statistics are to be estimated on the data called 'train', but there are "
            f"only {', '.join(data)}; add it, or keep the model's own"
        )
    return estimated(model, estimate_on, group=group)


def _operator(objective: Objective, plan: Plan) -> Operator:
    made = {"hessian": Hessian, "gauss-newton": gauss_newton, "fisher": empirical_fisher}
    if plan.curvature not in made:
        raise UserError(f"there is no curvature {plan.curvature!r}; take one of {', '.join(made)}")
    return made[plan.curvature](objective)


def _curvature(
    objective: Objective, plan: Plan, about: dict[str, Any], progress: Progress
) -> Records:
    operator = _operator(objective, plan)
    about = {**about, "curvature": plan.curvature}
    records: Records = []
    if plan.top or plan.bottom:
        if plan.method == "power":
            found = power_iteration(operator, plan.top, seed=plan.seed, progress=progress)
        else:
            found = lanczos(
                operator, plan.top, plan.bottom, tolerance=plan.tolerance, seed=plan.seed,
                progress=progress,
            )  # fmt: skip
        records.append(found.record(**about))
    if plan.trace_products:
        records.append(
            hutch_plus_plus(operator, plan.trace_products, seed=plan.seed).record(**about)
        )
    if plan.density_steps:
        found = spectral_density(
            operator, plan.density_steps, plan.density_starts, seed=plan.seed, progress=progress
        )
        records.append(found.record(**about))
    return records


def _shape(objective: Objective, plan: Plan, about: dict[str, Any], progress: Progress) -> Records:
    records: Records = []
    if plan.sharpness:
        found = sharpness(objective, tolerance=plan.tolerance, seed=plan.seed, progress=progress)
        records.append(found.record(**about))
    if plan.noise:
        noise = gradient_noise(objective)
        records.append(noise.record(**about))
        if about["data"] != "test":  # No step is taken on those.
            drawn = replace(noise, samples=plan.population or noise.samples)
            records.append(drawn.step(*plan.noise).record(**about))
    count = max(plan.directions, 2 if plan.surface_points else 0)
    if not count:
        return records
    # The Gaussians depend on the seed alone: every model of one layout gets the same ones.
    (directions,) = shared_directions([objective.weights], objective.layout, count, seed=plan.seed)
    for index, direction in enumerate(directions[: plan.directions]):
        steps = spread(-plan.reach, plan.reach, plan.curve_points)
        found = curve(objective, direction, steps, progress=progress)
        records.append(found.record(direction=index, **about))
    if plan.surface_points:
        steps = spread(-plan.reach, plan.reach, plan.surface_points)
        found = surface(objective, (directions[0], directions[1]), steps, progress=progress)
        records.append(found.record(**about))
    return records


def _lines(
    models: Mapping[str, nn.Module],
    loss: Loss,
    data: Mapping[str, Data],
    plan: Plan,
    estimate_on: Data | None,
    group: ProcessGroup | None,
    progress: Progress,
) -> Records:
    kind = "estimated" if plan.statistics == "estimated" else "interpolated"
    positions = sorted({*spread(-0.5, 1.5, plan.line_points), 0.0, 1.0})
    return [
        interpolate(
            models[a], models[b], loss, data, positions, statistics=kind, estimate_on=estimate_on,
            group=group, progress=progress,
        ).record(pair=f"{a} to {b}")
        for a, b in combinations(models, 2)
    ]  # fmt: skip


def _planes(
    models: Mapping[str, nn.Module],
    loss: Loss,
    data: Mapping[str, Data],
    plan: Plan,
    estimate_on: Data | None,
    group: ProcessGroup | None,
    progress: Progress,
) -> Records:
    records = []
    if estimate_on is None and any(True for net in models.values() for _ in batch_norms(net)):
        raise UserError(
            "batch-norm statistics of a plane are measured on the data called 'train', but there "
            f"are only {', '.join(data)}; add it, or leave planes out"
        )
    for names in combinations(models, 3):
        three = [models[name] for name in names]
        for data_name, pairs in data.items():
            found = plane(
                three, loss, pairs, points=plan.plane_points, estimate_on=estimate_on,
                group=group, progress=progress,
            )  # fmt: skip
            records.append(found.record(models=list(names), data=data_name))
    return records
