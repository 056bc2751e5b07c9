"""What the examples do, written down plainly: K models in a list, no framework and no `LocalSGD`.

Shapes: samples `[N, 64]`, labels `[N]`; an epoch's order is a permutation of the N samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

Order = Callable[[int, int], list[Tensor]]
"""From (worker, epoch) to the samples of each micro-batch."""


def digits(count: int) -> tuple[Tensor, Tensor]:
    found = load_digits()
    return torch.tensor(found.data[:count] / 16), torch.tensor(found.target[:count])


def permutation(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    return net.double()


def trained(
    order: Order,
    *,
    epochs: int,
    accumulate: int = 1,
    workers: int = 2,
    local_steps: int = 4,
    make: Callable[[nn.Module], torch.optim.Optimizer],
    schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
    skipped: tuple[int, int] | None = None,
    clip: float | None = None,
) -> tuple[dict[str, Tensor], float]:
    """The averaged weights at the end, and the last learning rate.

    Args:
        skipped: worker and step whose gradients are not finite, so that a scaler leaves the step
            out; it counts as a step.
        clip: largest norm of the gradients, which are averaged first: mini-batch SGD.
    """
    x, y = digits(1440)
    models = [net() for _ in range(workers)]
    optimizers = [make(model) for model in models]
    schedulers = [schedule(optimizer) for optimizer in optimizers]
    step = 0
    for epoch in range(epochs):
        batches = [order(worker, epoch) for worker in range(workers)]
        for start in range(0, len(batches[0]), accumulate):
            for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                optimizer.zero_grad()
                for samples in batches[worker][start : start + accumulate]:
                    loss = nn.functional.cross_entropy(model(x[samples]), y[samples])
                    (loss / accumulate).backward()
            if clip is not None:
                average([[p.grad for p in model.parameters()] for model in models])
                for model in models:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
            for worker, optimizer in enumerate(optimizers):
                if skipped != (worker, step):
                    optimizer.step()
                schedulers[worker].step()
            step += 1
            if step % local_steps == 0 and clip is None:
                average([list(model.parameters()) for model in models])
    average([list(model.parameters()) for model in models])
    return dict(models[0].state_dict()), optimizers[0].param_groups[0]["lr"]


@torch.no_grad()
def average(members: list[list[Any]]) -> None:
    for tensors in zip(*members, strict=True):
        mean = sum(tensors[1:], tensors[0].clone()) / len(tensors)
        for tensor in tensors:
            tensor.copy_(mean)
