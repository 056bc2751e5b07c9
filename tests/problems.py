"""Small problems, the same in every process: seeded data, and nets with and without batch norm.

Shapes: N samples of 1 x 6 x 6 · 3 classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

SAMPLES = 203


@cache
def data(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Images `[N, 1, 6, 6]` and labels `[N]`."""
    draw = torch.Generator().manual_seed(11)
    images = torch.randn(SAMPLES, 1, 6, 6, generator=draw, dtype=torch.float64)
    labels = torch.randint(3, (SAMPLES,), generator=draw)
    return images.to(dtype), labels


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 3))


def conv_net() -> nn.Module:
    """With batch norm."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Conv2d(3, 4, 3, stride=2, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


NETS: dict[str, Callable[[], nn.Module]] = {"plain": plain_net, "conv": conv_net}


def net(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A net by name, with the same weights every time."""
    torch.manual_seed(3)
    return NETS[name]().to(dtype)


def no_decay(model: nn.Module) -> frozenset[str]:
    """The parameters of batch norm, by name."""
    return frozenset(
        f"{name}.{parameter}"
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d)
        for parameter, _ in module.named_parameters()
    )


def loss_on(model: nn.Module, samples: Tensor) -> Tensor:
    """Mean loss over the samples of these numbers."""
    images, labels = data(next(model.parameters()).dtype)
    return cross_entropy(model(images[samples]), labels[samples])
