"""Rows of the paper's first table: ResNet-20 on CIFAR-10, small and large batches, post-local SGD.

The paper's procedure in what time allows: fewer epochs, with warm-up and decays at the same shares.
What is cut off goes on from its checkpoint, to the same bits where the GPU's own sums have them.
"""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.hosting import Hosted, Variant
from localsgd.averaging.buffers import mean_buffers, put_buffers
from localsgd.basics.files import as_saved, check_regular, read_text
from localsgd.loop import train
from localsgd.schedule.fixed import every, post_local
from localsgd.schedule.progress import Schedule
from localsgd.schedule.rounds import Position
from localsgd.train.config.learning_rate import StepDecay
from localsgd.train.data.tasks.images import ImageTask
from localsgd.wire import InProcess

RATE = 0.2
"""Learning rate of one worker with 128 samples."""


@dataclass(frozen=True)
class Row:
    """An algorithm of the table: K workers, their batch, H from the start or the first decay."""

    workers: int
    batch: int = 128
    local_steps: int = 1
    post_local: bool = False

    def schedule(self, decay: int) -> Schedule:
        return post_local(self.local_steps, decay) if self.post_local else every(self.local_steps)


ROWS = {
    "A1": Row(1),
    "A2": Row(16),
    "A3": Row(16, batch=512),
    "A4": Row(16, local_steps=4),
    "A5": Row(16, local_steps=16, post_local=True),
}


class OutOfTime(Exception):
    """Time is up; the work so far is saved."""


@dataclass
class Training:
    """One row that is being trained.

    Args:
        name: of the row.
        epochs: of the run.
        path: of its checkpoint.
        deadline: on the clock `time.monotonic`.
    """

    name: str
    task: ImageTask
    model: str
    variant: Variant
    epochs: float
    path: Path
    deadline: float
    seed: int = 0

    def __post_init__(self) -> None:
        row = ROWS[self.name]
        self.hosted = Hosted(
            self.task, self.model, row.workers, row.batch, self.variant, seed=self.seed
        )
        per_epoch = self.task.train_size / (row.workers * row.batch)
        self.steps = int(self.epochs * per_epoch)
        scale = row.workers * row.batch / 128
        self.rate = StepDecay(
            start=RATE,
            peak=RATE * scale,
            warmup_steps=int(self.steps * 5 / 300) if scale > 1 else 0,
            decays=(self.steps // 2, 3 * self.steps // 4),
        )
        self.schedule = row.schedule(self.steps // 2)
        self.position = Position.start(1)
        self.seconds = 0.0
        if self.path.exists():
            self._load()

    def train(self) -> dict[str, Any]:
        """Trains to the end, or to the deadline."""
        hosted, begun = self.hosted, time.monotonic() - self.seconds

        def after_step() -> None:
            if time.monotonic() > self.deadline and hosted.step < self.steps:
                self.seconds = time.monotonic() - begun
                self.save()
                raise OutOfTime(f"{self.name}: step {hosted.step} of {self.steps}")

        train(
            hosted,
            hosted.levels(hosted.workers.params),
            [self.schedule],
            self.rate,
            steps=self.steps,
            position=self.position,
            gradients=hosted.levels(hosted.workers.grads),
            after_step=after_step,
        )
        self.seconds = time.monotonic() - begun
        losses, counts = hosted.workers.take_losses()
        return {
            "row": self.name,
            "epochs": self.epochs,
            "train_size": self.task.train_size,
            "test_accuracy": accuracy(self.hosted, self.task),
            "train_loss": float(losses.sum()) / max(1, sum(counts)),
            "seconds": round(self.seconds, 1),
            "seed": self.seed,
        }

    def save(self) -> None:
        workers = self.hosted.workers
        state = {
            "workers": [_own_memory(workers.state(row)) for row in range(len(workers.ids))],
            "step": workers.step,
            "position": asdict(self.position),
            "seconds": self.seconds,
            "asked": self._asked(),
        }
        partial = self.path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self.path)

    def _load(self) -> None:
        check_regular(self.path)
        with as_saved(self.path, "remove it to begin this row again"):
            state = torch.load(self.path, weights_only=True)
            if state["asked"] != self._asked():
                raise SystemExit(f"{self.path} is of another run; give another folder with --out")
            for row, own in enumerate(state["workers"]):
                self.hosted.workers.load(row, own)
            self.hosted.workers.step = int(state["step"])
            self.position = Position(**state["position"])
            self.seconds = float(state["seconds"])

    def _asked(self) -> dict[str, Any]:
        return {
            **asdict(self.variant),
            "name": self.name,
            "model": self.model,
            "epochs": self.epochs,
            "train_size": self.task.train_size,
            "seed": self.seed,
        }


def _own_memory(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _own_memory(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_own_memory(item) for item in value]
    return value


@torch.no_grad()
def accuracy(hosted: Hosted, task: ImageTask) -> float:
    """Accuracy of the workers' mean model on the test images, in [0, 1]."""
    workers = hosted.workers
    model = copy.deepcopy(workers.models[0])
    mean = workers.layout.views(workers.params.mean(0))
    for name, parameter in model.named_parameters():
        parameter.copy_(mean[name])
    put_buffers(model, mean_buffers(workers.models, InProcess(len(workers.ids))))
    model.eval()
    everything = torch.arange(task.test_size)
    sums = sum(task.judge(model, some) for some in everything.split(1000))
    return float(sums[1] / sums[2])  # pyrefly: ignore


def rows(
    names: list[str], make: Callable[[str, Path], Training], out: Path
) -> list[dict[str, Any]]:
    """Trains those rows that have no result in `out` yet; results come into results.jsonl."""
    out.mkdir(parents=True, exist_ok=True)
    results = out / "results.jsonl"
    found: dict[str, dict[str, Any]] = {}
    with as_saved(results, "take the damaged line out, and its row is trained again"):
        for line in read_text(results).splitlines() if results.exists() else []:
            result = json.loads(line)
            found[result["row"]] = result
    for name in names:
        if name in found:
            continue
        path = out / f"{name}.pt"
        try:
            found[name] = make(name, path).train()
        except OutOfTime as stopped:
            print(f"{stopped}; the same command goes on")
            break
        with results.open("a") as file:
            file.write(json.dumps(found[name]) + "\n")
        print(json.dumps(found[name]), flush=True)
        path.unlink(missing_ok=True)
    return [found[name] for name in names if name in found]
