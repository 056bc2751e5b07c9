"""Gauss-Newton and the empirical Fisher against what they are made of, formed densely."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.nn import functional as F

from localsgd.errors import UserError
from localsgd.landscape import Hessian, Objective, empirical_fisher, gauss_newton, in_batches
from tests.distributed.harness import run
from tests.landscape.cases import assert_same_state, batch_norm_net, objective, samples, state_of


def vectors(count: int, n: int) -> torch.Tensor:
    return torch.randn(count, n, dtype=torch.float64)


def jacobian(net: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [N, classes] and their Jacobian [N, classes, n]."""
    net.eval()
    chosen = {name: p.detach() for name, p in net.named_parameters()}
    x = samples()[0]
    parts = jacrev(lambda p: functional_call(net, p, (x,)))(chosen)
    rows = [parts[name].flatten(2) for name in chosen]
    return net(x).detach(), torch.cat(rows, dim=2)


@pytest.mark.parametrize("batch", [7, 30])
def test_gauss_newton(batch: int) -> None:
    z, j = jacobian(batch_norm_net())
    y = samples()[1]
    expected = torch.zeros(382, 382, dtype=torch.float64)
    for row, target, slope in zip(z, y, j, strict=True):
        middle = jacrev(jacrev(lambda r, t=target: F.cross_entropy(r[None], t[None])))(row)
        expected += slope.T @ middle @ slope / len(y)
    v = vectors(4, 382)
    ours = gauss_newton(objective(batch=batch)).apply(v)
    torch.testing.assert_close(ours, v @ expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("batch", [7, 30])
def test_empirical_fisher(batch: int) -> None:
    z, j = jacobian(batch_norm_net())
    y = samples()[1]
    slopes = torch.softmax(z, 1) - F.one_hot(y, z.shape[1])
    gradients = torch.einsum("bo,bon->bn", slopes, j)
    v = vectors(4, 382)
    ours = empirical_fisher(objective(batch=batch)).apply(v)
    expected = v @ gradients.T @ gradients / len(y)
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-12)


def test_for_a_linear_model_gauss_newton_is_the_hessian() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).double()
    subject = objective(net)
    v = vectors(4, subject.n)
    expected = Hessian(subject).apply(v)
    torch.testing.assert_close(gauss_newton(subject).apply(v), expected, rtol=1e-11, atol=1e-13)


def _in_a_group() -> list[torch.Tensor]:
    import torch.distributed as dist

    subject = objective(group=dist.group.WORLD)
    v = torch.ones(1, subject.n, dtype=torch.float64)
    return [gauss_newton(subject).apply(v), empirical_fisher(subject).apply(v)]


def test_many_processes_are_one() -> None:
    subject = objective()
    v = torch.ones(1, subject.n, dtype=torch.float64)
    expected = [gauss_newton(subject).apply(v), empirical_fisher(subject).apply(v)]
    for results in run(2, _in_a_group):
        for one, two in zip(results, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-14)


def test_the_model_is_left_alone() -> None:
    net = batch_norm_net()
    before = state_of(net)
    v = torch.ones(1, 382, dtype=torch.float64)
    gauss_newton(objective(net)).apply(v)
    empirical_fisher(objective(net)).apply(v)
    assert_same_state(before, state_of(net))


def test_fisher_needs_outputs_by_sample() -> None:
    class Transposes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(36, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.flatten(1)).T

    data = in_batches(*samples(), 30)
    subject = Objective(Transposes().double(), lambda z, y: F.cross_entropy(z.T, y), data)
    with pytest.raises(UserError, match="first dimension of samples"):
        empirical_fisher(subject).apply(torch.ones(1, subject.n).double())
