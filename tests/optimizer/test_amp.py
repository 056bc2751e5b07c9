"""Gradients that a scaler has scaled: unscaled in one go, and judged with one question."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from localsgd.optimizer.amp import all_finite, unscale
from tests.distributed.crossing import Calls


def with_gradients(*gradients: torch.Tensor) -> torch.optim.Optimizer:
    parameters = [nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return torch.optim.SGD([*parameters, nn.Parameter(torch.zeros(2))], lr=0.1)


MIXED = (
    *(torch.randn(n, generator=torch.Generator().manual_seed(n)) for n in (3, 5, 7)),
    torch.tensor([4.0, 8.0], dtype=torch.float16),
    torch.tensor([1.0], dtype=torch.float64),
)


def test_unscaling_divides_by_kind_of_tensor() -> None:
    optimizer = with_gradients(*MIXED)
    with Calls() as calls:
        unscale(optimizer, torch.tensor(3.0))
    assert calls.names.count("_foreach_mul_") == 3
    assert "mul_" not in calls.names
    third = (1 / torch.tensor(3.0, dtype=torch.float64)).float()
    for parameter, given in zip(optimizer.param_groups[0]["params"], MIXED, strict=False):
        assert torch.equal(parameter.grad, given.clone().mul_(third))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_all_gradients_are_judged_with_one_question(bad: float) -> None:
    optimizer = with_gradients(*MIXED)
    with Calls() as calls:
        assert all_finite(optimizer)
    assert calls.names.count("_local_scalar_dense") == 1
    for parameter in optimizer.param_groups[0]["params"][:-1]:
        was = parameter.grad[0].item()
        parameter.grad[0] = bad
        assert not all_finite(optimizer)
        parameter.grad[0] = was
    assert all_finite(torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1))
