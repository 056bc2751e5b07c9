"""A training run as a job: from settings and a seed to a compact record."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from experiments import made, store
from experiments.snapshots import Repeats, Snapshots, differs, figure, point
from experiments.study import Record, Workplace
from experiments.vocabulary import common_words
from localsgd.errors import UserError
from localsgd.train.config.complete import complete_run
from localsgd.train.config.run import Run, to_json
from localsgd.train.data import tasks
from localsgd.train.data.metric import metric_of
from localsgd.train.data.task import Task, as_read
from localsgd.train.engine import trunk
from localsgd.train.engine.assembly import Assembly, pick_device
from localsgd.train.engine.evaluation import averaged_model, recalibrate, score
from localsgd.train.engine.execution import Execution
from localsgd.train.engine.observer import Observer, Observers

FITTED = 5000
"""Training samples, at most, on which the end of a run is judged."""
USUAL = Run()


@dataclass(frozen=True)
class TrainJob:
    """One training run.

    Args:
        run: its settings, not completed, the seed among them.
        words: of a text, all but the most frequent so many words are read as one; the whole
            vocabulary if not given.
        made: whether the text is one that is made up.
        keep: shares of the steps after which averaged models are kept in the scratch folder, until
            what measures them removes them. With or without them it is the same job.
    """

    run: Run
    words: int | None = None
    made: bool = False
    keep: tuple[float, ...] = field(default=(), compare=False)

    @property
    def key(self) -> Mapping[str, Any]:
        chosen = {
            name: value
            for name, value in msgspec.to_builtins(self.run).items()
            if name != "task" and value != getattr(USUAL, name)
        }
        key = {"kind": "train", "task": self.run.task, **chosen}
        extra = {"words": self.words, "made": self.made or None}
        return {**key, **{name: value for name, value in extra.items() if value is not None}}

    @property
    def title(self) -> str:
        run = self.run
        workers = run.topology or run.workers or "8"
        steps = "x".join(map(str, run.local_steps or ())) or "1"
        model = run.model or "default model"
        return f"{run.method}, {model} on {run.task}, K={workers}, H={steps}, seed {run.seed}"

    def carry_out(self, place: Workplace) -> Record:
        task = self.task(place)
        run = complete_run(self.run, task.card)
        name = self._name(run)
        with trunk.alone(lock(place, name)):
            return place.once(self, lambda: self._trained(run, task, place.scratch, name))

    def models(self, place: Workplace, record: Record, aside: Path) -> dict[float, nn.Module]:
        """The averaged models that are to be kept, by share of the steps.

        If the run has left none, because it was carried out on another machine or before they were
        wanted, it is trained again, and must end in the weights of its record.

        Args:
            place: where it was carried out, or was to be.
            record: of the run.
            aside: a folder to train it again in, to be removed afterwards. Trunks that lie in
                `place` are not gone on from, as they are without the models before their end.

        Raises:
            UserError: trained again it comes out otherwise.
        """
        task = self.task(place)
        run = complete_run(self.run, task.card)
        name = self._name(run)
        with trunk.alone(lock(place, name)):
            kept = self._snapshots(place.scratch, name)
            if not kept.complete:
                self._repeated(record, run, task, aside, name)
                shutil.rmtree(kept.folder, ignore_errors=True)
                kept.folder.parent.mkdir(parents=True, exist_ok=True)
                self._snapshots(aside, name).folder.replace(kept.folder)
            return kept.models(run, task)

    def forget(self, place: Workplace) -> None:
        """Removes the models that are kept."""
        name = self._name(complete_run(self.run, tasks.card(self.run.task)))
        shutil.rmtree(self._snapshots(place.scratch, name).folder, ignore_errors=True)

    def _repeated(self, record: Record, run: Run, task: Task, aside: Path, name: str) -> None:
        """Trains a run again, and keeps nothing if it comes out otherwise."""
        try:
            again = self._trained(run, task, aside, name, Repeats(self.title, record["curve"]))
            if again["weights"] != record["weights"]:
                raise differs(self.title, "in its last weights")
        except UserError:
            shutil.rmtree(aside)
            raise

    def _trained(
        self, run: Run, task: Task, scratch: Path, name: str, *observers: Observer
    ) -> Record:
        folder = scratch / "runs" / name
        observer = Observers(self._snapshots(scratch, name), *observers)
        execution = trunk.opened(run, task, folder, observer)
        if execution.assembly.workers.step == 0:
            trunks = scratch / self._vocabulary
            trunk.start(execution, trunks, version=store.CODE, observer=observer)
        summary = execution.train()
        record = _record(execution, summary)
        shutil.rmtree(folder)
        return record

    def _snapshots(self, scratch: Path, name: str) -> Snapshots:
        return Snapshots(scratch / "snapshots" / name, self.keep)

    def _name(self, completed: Run) -> str:
        """The folder's name for this job and version of the numbers.

        A run that another version has begun is not continued.
        """
        version = f"{store.CODE}-{store.canonical(self.key)}".encode()
        return hashlib.sha256(version + to_json(completed)).hexdigest()[:16]

    def task(self, place: Workplace) -> Task:
        """What it is trained on."""
        folder = made.text(place.scratch / "made") if self.made else place.data_dir
        device = pick_device(self.run.device)
        return data(self.run.task, folder, self.run.train_samples, self.words, device)

    @property
    def _vocabulary(self) -> str:
        """Trunks of one run over several texts lie apart."""
        text = "made" if self.made else "text"
        return text if self.words is None else f"{text}-{self.words}"


@cache
def _given(
    name: str,
    data_dir: Path | None,
    samples: int | None,
    words: int | None,
    device: torch.device | str,
) -> Any:
    """The data, or what is wrong with it: what is missing is looked for once."""
    try:
        task = tasks.load(name, data_dir, device=device)
    except UserError as error:
        return error
    if samples is not None:
        task = task.subset(samples)
    return task if words is None else common_words(task, words)


def data(
    name: str,
    data_dir: Path | None,
    samples: int | None,
    words: int | None = None,
    device: torch.device | str = "cpu",
) -> Task:
    """A task, as much of its training data as wanted, on `device`.

    Raises:
        UserError: the data is not there.
    """
    found = _given(name, data_dir, samples, words, device)
    if isinstance(found, UserError):
        raise found
    return found


def _record(execution: Execution, summary: Mapping[str, Any]) -> Record:
    """What is kept: a few numbers and a curve."""
    assembly = execution.assembly
    metric = metric_of(summary)
    loss, accuracy = _fit(averaged_model(assembly), assembly)
    rows = execution.folder.metrics()
    return {
        **_recalibrated(assembly),
        metric.key: figure(summary[metric.key]),
        metric.best: figure(summary[metric.best]),
        metric.local: figure(summary[metric.local]),
        "test_loss": figure(summary["test_loss"]),
        "train_loss": figure(loss),
        "train_accuracy": figure(accuracy),
        "steps": summary["steps"],
        "syncs": summary["syncs"],
        "bytes": [entry["bytes"] for entry in summary["ledger"]],
        "scalars": assembly.workers.layout.length,
        "samples": assembly.task.train_size,
        "seconds": round(summary["seconds"], 2),
        "weights": _digest(assembly),
        "curve": [point(row, metric.key) for row in rows],
    }


def _recalibrated(assembly: Assembly) -> dict[str, float | None]:
    """Test results with batch-norm statistics re-estimated on training data, beside the mean's."""
    model = averaged_model(assembly)
    norms = any(isinstance(module, _BatchNorm) for module in model.modules())
    if assembly.run.batch_norm != "mean" or not norms:
        return {}
    recalibrate(model, assembly)
    found = score(model, assembly)
    return {
        "recalibrated_test_accuracy": figure(found.accuracy),
        "recalibrated_test_loss": figure(found.loss),
    }


@torch.no_grad()
def _fit(model: nn.Module, assembly: Assembly) -> tuple[float, float]:
    """Loss and accuracy on training samples as they are, the first so many of them."""
    task, sums = assembly.task, torch.zeros(3, dtype=torch.float64)
    count = min(FITTED, task.train_size)
    for indices in torch.arange(count).split(min(500, task.judged_together)):
        x, y = task.train_batch(indices, None)
        with assembly.autocast():
            sums += task.verdict(model(as_read(x, model)), y, model)
    loss, correct, targets = sums.tolist()
    return loss / targets, correct / targets


def _digest(assembly: Assembly) -> str:
    """A digest of all workers' final weights; equal if two runs end in the same bits."""
    content = assembly.workers.params.detach().cpu().view(torch.uint8).numpy()
    return hashlib.sha256(content.data).hexdigest()[:12]


def lock(place: Workplace, name: str) -> Path:
    """The file that lets one process at a time do a piece of work."""
    folder = place.scratch / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.lock"
