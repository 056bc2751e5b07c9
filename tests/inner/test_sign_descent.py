from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.inner import SignDescent


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_sign_of_what_sgd_would_step_along(momentum: float, nesterov: bool) -> None:
    """torch's SGD on a copy of the same point tells the direction of every step."""
    draw = torch.Generator().manual_seed(0)
    w = torch.nn.Parameter(torch.randn(50, generator=draw, dtype=torch.float64))
    options = {"momentum": momentum, "weight_decay": 0.1, "nesterov": nesterov and momentum > 0}
    optimizer = SignDescent([w], lr=0.01, **options)
    other = torch.nn.Parameter(w.detach().clone())
    sgd = torch.optim.SGD([other], lr=1.0, **options)
    for _ in range(5):
        gradient = torch.randn(50, generator=draw, dtype=torch.float64)
        other.data.copy_(w.data)
        w.grad, other.grad = gradient, gradient.clone()
        before = w.detach().clone()
        optimizer.step()
        sgd.step()
        expected = before - 0.01 * (before - other.data).sign()
        assert torch.equal(w.data, expected)


def test_what_has_no_gradient_does_not_move() -> None:
    w = torch.nn.Parameter(torch.ones(3))
    w.grad = torch.tensor([0.0, 1.0, -2.0])
    SignDescent([w], lr=0.5).step()
    assert w.tolist() == [1.0, 0.5, 1.5]


def test_mistakes() -> None:
    with pytest.raises(UserError, match="lr = -1"):
        SignDescent([torch.nn.Parameter(torch.ones(2))], lr=-1)
