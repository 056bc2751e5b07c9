"""Measurements of the final models of one seed's arms."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from experiments.landscape.design import (
    ARMS,
    CURVE_POINTS,
    DIRECTIONS,
    LINE_POINTS,
    MANY,
    Setting,
)
from localsgd.landscape import Objective, Plan, evaluate, interpolate, plane
from localsgd.landscape.surface import spread
from localsgd.train.data.sampling.subset import batches_of
from localsgd.train.data.task import Task
from localsgd.train.engine.watching import Records

POST_LOCAL, SCRATCH, MINI_BATCH, SMALL = f"H={MANY}", f"scratch H={MANY}", "H=1", "small batch"
SHAPES = (MINI_BATCH, POST_LOCAL, SCRATCH, SMALL)
"""The arms whose curves and scale-free figures are taken; eigenvalues are taken of all."""
PLANE_POINTS = 11


def measured(models: Mapping[str, nn.Module], task: Task, setting: Setting, seed: int) -> Records:
    """Records of all arms and of the lines between them."""
    data = batches_of(task, setting.samples)
    records: Records = []
    for arm, model in models.items():
        records += _scores(arm, model, task)
        plan = Plan(
            top=10,
            trace_products=18,
            sharpness=arm in SHAPES,
            directions=DIRECTIONS if arm in SHAPES else 0,
            curve_points=CURVE_POINTS,
            seed=seed,
        )
        records += [r for r in evaluate(model, task.loss, data, plan, name=arm) if _kept(r)]
    for start in (POST_LOCAL, SCRATCH):
        line = interpolate(
            models[start], models[MINI_BATCH], task.loss, data, spread(-0.5, 1.5, LINE_POINTS)
        )
        records.append(line.record(pair=f"{start} to {MINI_BATCH}"))
    return records


def the_plane(models: Mapping[str, nn.Module], task: Task, setting: Setting) -> Records:
    """The training loss on the plane through small batch, large batch and post-local SGD."""
    names = (SMALL, MINI_BATCH, POST_LOCAL)
    data = batches_of(task, setting.samples, names=("train",))["train"]
    found = plane([models[name] for name in names], task.loss, data, points=PLANE_POINTS)
    return [found.record(models=list(names), data="train")]


def _scores(arm: str, model: nn.Module, task: Task) -> Records:
    """Loss and accuracy on all training and test samples."""
    return [
        {"kind": "result", "model": arm, "data": name}
        | vars(Objective(model, task.loss, data).score())
        for name, data in batches_of(task).items()
    ]


def _kept(record: Mapping[str, object]) -> bool:
    return record["kind"] != "score"


assert set(SHAPES) <= set(ARMS)
