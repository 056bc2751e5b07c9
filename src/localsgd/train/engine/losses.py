"""The loss of a worker's step: its batch, and the call of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from localsgd.basics.seeds import generator_for, seed_for
from localsgd.train.config.run import Run
from localsgd.train.data.sampling.order import Order
from localsgd.train.data.sampling.streams import Streams
from localsgd.train.data.task import Task
from localsgd.train.engine.batched import LossesOf, batched_losses, check_batched
from localsgd.train.engine.prefetch import Batch, Prefetched


def loss_of(
    run: Run, task: Task, order: Order | Streams, ids: Sequence[int], device: torch.device
) -> Callable[[nn.Module, int, int], Tensor]:
    """The loss of a model on worker k's batch of step t, which depends on (seed, k, t) alone.

    Args:
        ids: the workers hosted here.
    """
    batch, forward = _batches(run, task, order, ids), _forward(run, task, device)
    if run.compile:
        forward = torch.compile(forward)

    def loss(model: nn.Module, worker: int, step: int) -> Tensor:
        x, y = batch(worker, step)
        _seed(device, seed_for(run.seed, "dropout", worker, step))
        return forward(model, x, y)

    return loss


def losses_of(
    run: Run, task: Task, order: Order | Streams, ids: Sequence[int], model: nn.Module
) -> LossesOf:
    """The losses of all workers at once, by `batched.py`."""
    check_batched(model, run.model or task.default_model)
    device = next(model.parameters()).device
    return batched_losses(_batches(run, task, order, ids), _forward(run, task, device))


def _batches(
    run: Run, task: Task, order: Order | Streams, ids: Sequence[int]
) -> Callable[[int, int], Batch]:
    """Worker k's batch of step t, in the format that models read."""
    dtype = torch.float64 if run.precision == "float64" else torch.float32

    def batch(worker: int, step: int) -> Batch:
        draw = generator_for(run.seed, "augment", worker, step)
        x, y = task.train_batch(order.indices(worker, step), draw)
        if x.is_floating_point():
            x = x.to(dtype)
        if run.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x, y

    return Prefetched(batch, ids) if run.prefetch else batch


def _forward(
    run: Run, task: Task, device: torch.device
) -> Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], Tensor]:
    autocast = partial(torch.autocast, device.type, torch.bfloat16, run.precision == "bfloat16")
    dtype = torch.float64 if run.precision == "float64" else torch.float32

    def forward(model: Callable[[Tensor], Tensor], x: Tensor, target: Tensor) -> Tensor:
        with autocast():
            output = model(x)  # has a name for train/config/blame.py
            return task.loss(output.to(dtype), target)

    return forward


def _seed(device: torch.device, seed: int) -> None:
    """Seeds the generators that a model on `device` draws from."""
    if device.type == "cpu":
        # torch.manual_seed asks every kind of device there may be, which takes 0.2 ms a step.
        torch.random.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
