"""Local SGD written down plainly: K models in a list, pictures in place of schedules.

A picture such as `..1..2` says it all: a dot is a local step of every worker, a digit d lets groups
of the d-th level average.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Groups = Sequence[Sequence[int]]


def net() -> Any:
    """Small, with batch norm and a frozen tensor; the same for everybody."""
    generator = torch.Generator().manual_seed(7)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    model[3].bias.requires_grad_(False)
    return model


def batch(worker: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * worker + step)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return x, torch.randn(6, 2, generator=generator, dtype=torch.float64)


def loss_of(model: nn.Module, worker: int, step: int) -> Tensor:
    x, y = batch(worker, step)
    return nn.functional.mse_loss(model(x), y)


def nesterov(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01
    )


def reference(
    picture: str,
    groups: Sequence[Groups],
    *,
    make: Callable[[nn.Module], torch.optim.Optimizer] = nesterov,
    shared: Groups = (),
    build: Callable[[], nn.Module] = net,
    loss: Callable[[nn.Module, int, int], Tensor] = loss_of,
) -> list[nn.Module]:
    """The K workers' models after all that is drawn.

    Args:
        picture: `.` for a step, a digit for a sync of that many levels.
        groups: of each level, as lists of workers, innermost first; the outermost is the world.
        make: inner optimizers.
        shared: groups that average gradients before each step.
    """
    workers = range(len(groups[-1][0]))
    models = [build() for _ in workers]
    optimizers = [make(model) for model in models]
    step = 0
    for mark in picture:
        if mark != ".":
            for group in groups[int(mark) - 1]:
                average([list(models[k].parameters()) for k in group])
            continue
        for k in workers:
            optimizers[k].zero_grad()
            loss(models[k], k, step).backward()
        for group in shared:
            average([[p.grad for p in models[k].parameters() if p.requires_grad] for k in group])
        for optimizer in optimizers:
            optimizer.step()
        step += 1
    return models


@torch.no_grad()
def average(members: Sequence[Sequence[Tensor | None]]) -> None:
    for tensors in zip(*members, strict=True):
        present = [tensor for tensor in tensors if tensor is not None]
        mean = torch.stack(present).mean(0)
        for tensor in present:
            tensor.copy_(mean)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal to 1e-12, name by name."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-12, atol=1e-12, msg=name)


def assert_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def copied(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model)
