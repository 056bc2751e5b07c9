"""Two arms of one seed from their switch to their minima, measured right after they are trained.

A model that is not measured then would have to be trained again. The runs leave averaged models in
the scratch folder (`TrainJob.keep`); this job reads them, and removes them once its record is kept.
If they are not there, it trains the runs again, aside, and takes them only if they end in the
weights of their records (`TrainJob.models`).

What is measured, of the averaged models, with the workers' mean statistics of batch norm, as their
accuracy is (statistics from images without crops and flips were a trap: a network that has fitted
those images sees others otherwise):

- the largest eigenvalue of the Hessian at each share of the steps, the top ten at the end: of the
  mean loss without weight decay, on training samples as they are, drawn once; by Lanczos;
- at the end also sharpness (`localsgd.landscape.sharpness`), and the loss along directions that
  both arms share, scaled filter by filter; loss and accuracy on all training and test samples;
- the line from the first arm (0) to the second (1), on training and test samples: statistics of
  batch norm estimated at each point on augmented training data; and beside it statistics mixed like
  the weights, which give each model's own loss at its end and fit no model between.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from torch import nn

from experiments import store
from experiments.landscape.study import rounded
from experiments.study import Record, Workplace
from experiments.training import TrainJob, lock
from localsgd.basics.seeds import generator_for
from localsgd.landscape import Objective, Plan, evaluate, interpolate, largest_eigenvalue
from localsgd.landscape.surface import spread
from localsgd.train.data.sampling.subset import batches_of
from localsgd.train.data.task import Task
from localsgd.train.engine import trunk
from localsgd.train.engine.watching import Records, measured_or_why

BATCH = 250
"""Samples of a batch of which the curvature is taken."""


@dataclass(frozen=True)
class Measures:
    """How much is measured.

    Args:
        samples: training samples for curvature and curves.
        line_samples: of training and of test data each, for the line.
        top: eigenvalues at the end.
        tolerance: residuals of eigenvalues, relative to them; errors are far smaller.
        directions, points: curves along filter-normalised directions, and the points of each.
        line_points: from -0.5 to 1.5.
        seconds: on one core, for a forecast; no part of the key.
    """

    samples: int
    line_samples: int
    top: int = 10
    tolerance: float = 1e-2
    directions: int = 5
    points: int = 9
    line_points: int = 21
    seconds: float = 0.0


@dataclass(frozen=True)
class Minima:
    """The measurements of two runs of one seed.

    Args:
        first, second: the runs, which keep the same models, the last one at the end.
        names: of their arms in the record.
        measures: how much is measured.
    """

    first: TrainJob
    second: TrainJob
    names: tuple[str, str]
    measures: Measures

    @property
    def key(self) -> Mapping[str, Any]:
        one, two = self.first.key, self.second.key
        shared = {name: one[name] for name in one if name in two and one[name] == two[name]}
        own = {
            name: {part: key[part] for part in key if part not in shared}
            for name, key in zip(self.names, (one, two), strict=True)
        }
        chosen = {name: value for name, value in asdict(self.measures).items() if name != "seconds"}
        return {**shared, "kind": "minima", **own, **chosen, "shares": list(self.first.keep)}

    @property
    def title(self) -> str:
        run = self.first.run
        names = " and ".join(self.names)
        return f"minima of {names}, {run.model} on {run.task}, seed {run.seed}"

    @property
    def expected_seconds(self) -> float:
        return self.measures.seconds

    def carry_out(self, place: Workplace) -> Record:
        name = hashlib.sha256(f"{store.CODE}-{store.canonical(self.key)}".encode()).hexdigest()[:16]
        aside = place.scratch / "again" / name
        with trunk.alone(lock(place, name)):
            record = place.once(self, lambda: self._measured(place, aside))
            for job in (self.first, self.second):
                job.forget(place)
            shutil.rmtree(aside, ignore_errors=True)
        return record

    def _measured(self, place: Workplace, aside: Path) -> Record:
        models, weights = {}, {}
        for name, job in zip(self.names, (self.first, self.second), strict=True):
            trained = job.carry_out(place)
            models[name] = job.models(place, trained, aside)
            weights[name] = trained["weights"]
        task = self.first.task(place)
        began = time.process_time()
        records = measured_or_why(lambda: self._records(models, task))
        seconds = round(time.process_time() - began, 2)
        return {"seconds": seconds, "weights": weights, "records": rounded(records)}

    def _records(self, models: Mapping[str, Mapping[float, nn.Module]], task: Task) -> Records:
        ends = {name: found[1.0] for name, found in models.items()}
        of_arms = [one for name, found in models.items() for one in self._of_arm(name, found, task)]
        return of_arms + self._line(ends, task)

    def _of_arm(self, name: str, models: Mapping[float, nn.Module], task: Task) -> Records:
        """What is measured of one arm, on its way and at the end."""
        own, run = self.measures, self.first.run
        data = batches_of(task, own.samples, names=("train",), batch=BATCH)
        largest = largest_eigenvalue(task.loss, data, tolerance=own.tolerance)
        records: Records = []
        for share, model in models.items():
            if share < 1:
                about = {"model": name, "epoch": share * (run.epochs or 0)}
                records += [{**one, **about} for one in largest(model)]
        plan = Plan(
            top=own.top,
            tolerance=own.tolerance,
            sharpness=True,
            directions=own.directions,
            curve_points=own.points,
            seed=run.seed,
        )
        found = evaluate(models[1.0], task.loss, data, plan, name=name)
        records += [{**one, "epoch": run.epochs} for one in found if one["kind"] != "score"]
        for part, batches in batches_of(task).items():
            about = {"kind": "result", "model": name, "data": part}
            records.append(about | vars(Objective(models[1.0], task.loss, batches).score()))
        return records

    def _line(self, models: Mapping[str, nn.Module], task: Task) -> Records:
        own = self.measures
        data = batches_of(task, own.line_samples)
        draws = generator_for(self.first.run.seed, "minima")
        augmented = batches_of(task, own.line_samples, names=("train",), draws=draws)["train"]
        first, second = models.values()
        places = spread(-0.5, 1.5, own.line_points)
        kinds: tuple[Literal["interpolated", "estimated"], ...] = ("interpolated", "estimated")
        return [
            interpolate(
                first, second, task.loss, data, places, statistics=kind, estimate_on=augmented
            ).record(pair=" to ".join(models))
            for kind in kinds
        ]
