"""Names become objects: a run and its place among processes give workers, levels and schedules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from localsgd.collective import Ledger
from localsgd.collective.metered import Waiting
from localsgd.errors import UserError
from localsgd.reduce import (
    BFloat16,
    CompressedMean,
    Compressor,
    ExactMean,
    Int8,
    MajorityVote,
    OrderedMean,
    PowerSgd,
    Reducer,
    Sign,
    TopK,
)
from localsgd.run import Plan, Run
from localsgd.schedule import Position, Progress
from localsgd.tasks import models
from localsgd.tasks.task import Task, as_read
from localsgd.topology import AnyLevel, Placement, build_levels, row_multiple
from localsgd.train import train
from localsgd.workers.hosted import Inner, Workers
from localsgd.workers.layout import Layout
from localsgd.workers.order import Order, generator_for, seed_for
from localsgd.workers.streams import Streams

# Fused: a row is stepped as one vector, and everything else makes temporaries of its length.
OPTIMIZERS: dict[str, Callable[[Run], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": lambda run: partial(
        torch.optim.SGD,
        lr=1.0,
        momentum=run.momentum,
        nesterov=run.nesterov and run.momentum > 0,
        fused=True,
    ),
    "adam": lambda run: partial(torch.optim.Adam, fused=True),
    "adamw": lambda run: partial(torch.optim.AdamW, fused=True),
}

COMPRESSORS: dict[str, Callable[[Run], Compressor]] = {
    "sign": lambda run: Sign(),
    "ef-sign": lambda run: Sign(),
    "int8": lambda run: Int8(),
    "top-k": lambda run: TopK(run.top_k_share),
    "bfloat16": lambda run: BFloat16(),
}


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """`auto`, `cpu` or `cuda` to a device; of several GPUs the one of this process."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        if not torch.cuda.is_available():
            raise UserError("device cuda is not there; use --device cpu")
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    try:
        return torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use cpu, cuda or auto") from None


@dataclass
class Assembly:
    """All that trains: built by `assemble`, moved by `advance`, saved and loaded by `state`.

    Args:
        run: completed.
        plan: what follows from it.
        task: the data.
        placement: of the workers over processes.
        workers: those hosted here.
        levels: over their parameters, innermost first.
        gradients: the same over their gradients; empty where models are averaged at all times.
        order: which samples whom.
        ledger: what crossed each level.
        position: where in its rounds the run is.
    """

    run: Run
    plan: Plan
    task: Task
    placement: Placement
    workers: Workers
    levels: list[AnyLevel]
    gradients: list[AnyLevel]
    order: Order | Streams
    ledger: Ledger
    position: Position

    @property
    def epoch(self) -> float:
        return self.workers.step / self.plan.steps_per_epoch

    @property
    def agreements(self) -> list[int]:
        """How often each level has agreed, on models or on gradients, innermost first."""
        of_gradients = self.gradients or [None] * len(self.levels)
        return [
            level.agreements + (gradient.agreements if gradient else 0)
            for level, gradient in zip(self.levels, of_gradients, strict=True)
        ]

    def progress(self) -> Progress:
        """What schedules see: the same on every process, as it follows from the step."""
        step, rate = self.workers.step, self.plan.learning_rate
        return Progress(
            step=step,
            epoch=self.epoch,
            share=step / self.plan.steps,
            learning_rate=rate(step),
            decayed=rate.decayed(step),
        )

    def advance(self, after_step: Callable[[], None] = lambda: None) -> None:
        """Trains from where the run is to its end."""
        train(
            self.workers,
            self.levels,
            self.plan.schedules,
            self.plan.learning_rate,
            steps=self.plan.steps,
            position=self.position,
            progress=self.progress,
            gradients=self.gradients,
            after_step=after_step,
        )

    def autocast(self) -> AbstractContextManager[object]:
        if self.run.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.workers.params.device.type, torch.bfloat16)


def assemble(
    run: Run,
    task: Task,
    placement: Placement,
    device: torch.device,
    waiting: Waiting = nullcontext,
) -> Assembly:
    """Builds what trains `run`, which is completed, on `task` with the workers of `placement`.

    `waiting` makes a context for the time in which this process waits for others to agree.
    """
    plan = Plan(run, task.train_size)
    model = _model(run, task, device)
    dealt = Streams if task.card.sequential else Order
    order = dealt(plan.samples, plan.topology.workers, run.batch or 0, run.seed)
    inner = Inner(
        OPTIMIZERS[run.optimizer](run),
        weight_decay=run.weight_decay or 0.0,
        no_decay=models.no_decay(model),
    )
    workers = Workers(
        model,
        _loss(run, task, order, device),
        inner,
        placement.workers,
        row_multiple(plan.topology.workers),
    )
    count = plan.topology.levels
    ledger = Ledger.of(count)
    reducers = [*(_mean(run) for _ in range(count - 1)), _reducer(run, workers.layout)]
    build = partial(build_levels, placement, reducers=reducers, ledger=ledger, waiting=waiting)
    levels = build(workers.params)
    on_gradients = run.agree_on != "models" and run.compression == "none"
    gradients = build(workers.grads) if on_gradients else []
    position = Position.start(count)
    return Assembly(run, plan, task, placement, workers, levels, gradients, order, ledger, position)


def _mean(run: Run) -> Reducer:
    return OrderedMean() if run.reduction == "ordered" else ExactMean()


def _reducer(run: Run, layout: Layout) -> Reducer:
    """Of the outermost level, whose links are the slowest."""
    if run.compression == "none":
        return _mean(run)
    if run.compression == "majority":
        return MajorityVote(layout=layout)
    if run.compression == "power-sgd":
        return PowerSgd(layout, run.power_sgd_rank, mean=_mean(run), seed=run.seed)
    return CompressedMean(
        COMPRESSORS[run.compression](run),
        feedback=run.compression != "sign",
        way=run.compression_way,
        layout=layout,
    )


def _model(run: Run, task: Task, device: torch.device) -> nn.Module:
    if run.channels_last and task.card.sequential:
        raise UserError(f"channels_last is for images, but the task {task.name} gives text")
    name = run.model or task.default_model
    model = models.build(name, task, run.seed, streams=run.batch or 0)
    if run.init is not None:
        load_weights(model, Path(run.init))
    if run.precision == "float64":
        model = model.double()
    if run.channels_last:
        model.to(memory_format=torch.channels_last)  # pyrefly: ignore
    return model.to(device)


def _loss(
    run: Run, task: Task, order: Order | Streams, device: torch.device
) -> Callable[[nn.Module, int, int], Tensor]:
    """The loss of a model on worker k's batch of step t, which follows from (seed, k, t) alone."""
    autocast = partial(torch.autocast, device.type, torch.bfloat16, run.precision == "bfloat16")
    dtype = torch.float64 if run.precision == "float64" else torch.float32

    def forward(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with autocast():
            return task.loss(model(x).to(dtype), y)

    if run.compile:
        forward = torch.compile(forward)

    def loss(model: nn.Module, worker: int, step: int) -> Tensor:
        draw = generator_for(run.seed, "augment", worker, step)
        x, y = task.train_batch(order.indices(worker, step), draw)
        x = as_read(x, model)
        if run.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        _seed(device, seed_for(run.seed, "dropout", worker, step))
        return forward(model, x, y)

    return loss


def _seed(device: torch.device, seed: int) -> None:
    """Seeds what a model on `device` draws from."""
    if device.type == "cpu":
        # torch.manual_seed asks every kind of device there may be, which takes 0.2 ms a step.
        torch.random.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def load_weights(model: nn.Module, path: Path) -> None:
    """Fills `model` from a safetensors file, strictly."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path} is not there; give a safetensors file with weights") from None
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is no readable safetensors file: {error}") from None
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} holds the weights of another model: {reason[:200]}") from None
