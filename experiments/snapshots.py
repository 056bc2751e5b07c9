"""Averaged models on the way of a run, in files: what measures them reads and removes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import nn

from localsgd.errors import UserError
from localsgd.train.config.run import Run
from localsgd.train.data.task import Task
from localsgd.train.engine.assembly import Assembly, load_weights, model_of
from localsgd.train.engine.evaluation import averaged_model
from localsgd.train.engine.observer import Observer
from localsgd.train.engine.run_folder import safetensors_of, write_whole


@final
class Snapshots(Observer):
    """Keeps the averaged model of a run at some shares of its steps, and changes no bit of what is
    trained.

    A run that goes on from a trunk begins at the trunk's last step, which counts as seen.

    Args:
        folder: of the files, one for each share.
        shares: of the steps, 1 is the end; none, and nothing is kept. Not epochs: of 1562.5 steps
            1562 are trained, so that epoch 80 is never reached and the first decay is not epoch 40.
    """

    def __init__(self, folder: Path, shares: Sequence[float] = ()) -> None:
        self.folder, self.shares = folder, tuple(shares)

    def started(self, assembly: Assembly) -> None:
        self.stepped(assembly)

    def stepped(self, assembly: Assembly) -> None:
        for share in self.shares:
            if assembly.workers.step == assembly.plan.step_at_share(share):
                self.folder.mkdir(parents=True, exist_ok=True)
                write_whole(self.path(share), safetensors_of(averaged_model(assembly)))

    @property
    def complete(self) -> bool:
        return all(self.path(share).is_file() for share in self.shares)

    def path(self, share: float) -> Path:
        return self.folder / f"{share:g}.safetensors"

    def models(self, run: Run, task: Task) -> dict[float, nn.Module]:
        """The models of a completed run, by share of its steps."""
        found = {}
        for share in self.shares:
            found[share] = model_of(run, task, torch.device("cpu"), weights=False).eval()
            load_weights(found[share], self.path(share))
        return found


@final
class Repeats(Observer):
    """Stops a run that is to repeat another one at the first evaluation that comes out otherwise.

    Args:
        title: of the run.
        curve: of the other one's record.
    """

    def __init__(self, title: str, curve: Sequence[Sequence[float | None]]) -> None:
        self._title = title
        self._curve = {row[0]: list(row) for row in curve}

    def started(self, assembly: Assembly) -> None:
        self._metric = assembly.task.card.metric.key

    def evaluated(self, row: dict[str, Any]) -> None:
        found = point(row, self._metric)
        if found != self._curve.get(found[0]):
            raise differs(self._title, f"at epoch {found[0]:g}")


def differs(title: str, where: str) -> UserError:
    """The error of a run that is trained again and comes out otherwise."""
    return UserError(
        f"{title}: its models are not here, and trained again it differs {where} from its record; "
        "the same bits are promised for the same kind of machine, so measure it where it was made"
    )


def point(row: Mapping[str, Any], metric: str) -> list[float | None]:
    """An evaluation as a record's curve has it: epoch, test metric, training loss."""
    return [figure(row["epoch"]), figure(row[metric]), figure(row["train_loss"])]


def figure(value: float | None) -> float | None:
    """Five digits of a number; `None` for what is none."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")
