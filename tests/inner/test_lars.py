"""LARS and LARC beside a loop that takes the paper's algorithm line by line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from localsgd import LocalSGD
from localsgd.errors import UserError
from localsgd.inner import LARS

TRUST, DECAY, MOMENTUM = 0.02, 0.01, 0.9


def tensors() -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (5,), (2, 3, 3)]
    return [torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes]


def slopes(step: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(step + 1)
    return [torch.randn(w.shape, generator=draw, dtype=torch.float64) for w in tensors()]


def by_hand(rates: list[float], clip: bool) -> list[Tensor]:
    weights, velocities = tensors(), [torch.zeros_like(w) for w in tensors()]
    for step, rate in enumerate(rates):
        for w, v, g in zip(weights, velocities, slopes(step), strict=True):
            decay, own = 0.0, rate
            if w.dim() > 1:
                decay = DECAY
                ratio = TRUST * float(w.norm()) / (float(g.norm()) + decay * float(w.norm()))
                own = rate * min(ratio / rate, 1) if clip else rate * ratio
            v.copy_(MOMENTUM * v + own * (g + decay * w))
            w -= v
    return weights


@pytest.mark.parametrize("clip", [False, True])
def test_steps_are_those_of_the_paper(clip: bool) -> None:
    # The last rate is so small that LARC's ratio is clipped for none, the first for all.
    rates = [0.001, 0.3, 3.0, 0.05]
    weights = [torch.nn.Parameter(w) for w in tensors()]
    optimizer = LARS(weights, 0.1, MOMENTUM, DECAY, TRUST, clip)
    for step, rate in enumerate(rates):
        optimizer.param_groups[0]["lr"] = rate
        for parameter, slope in zip(weights, slopes(step), strict=True):
            parameter.grad = slope
        optimizer.step()
    for found, expected in zip(weights, by_hand(rates, clip), strict=True):
        torch.testing.assert_close(found.data, expected, rtol=1e-13, atol=1e-13)


def test_a_tensor_of_zeros_or_without_a_slope_takes_the_plain_step() -> None:
    zero, still = (torch.nn.Parameter(x) for x in (torch.zeros(2, 2), torch.ones(2, 2)))
    zero.grad, still.grad = torch.ones(2, 2), torch.zeros(2, 2)
    LARS([zero, still], lr=0.5, momentum=0.0).step()
    assert torch.equal(zero.data, torch.full((2, 2), -0.5))
    assert torch.equal(still.data, torch.ones(2, 2))


def test_it_is_an_inner_optimizer() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = LocalSGD(LARS(model.parameters(), lr=0.1), model, local_steps=2)
    before = model.weight.clone()
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)


def test_mistakes() -> None:
    with pytest.raises(UserError, match="trust = -1"):
        LARS([torch.nn.Parameter(torch.ones(2))], trust=-1)
    with pytest.raises(UserError, match="momentum of 1"):
        LARS([torch.nn.Parameter(torch.ones(2))], momentum=1.0)
