"""Hessian-vector products against the dense Hessian, closed forms and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import localsgd.landscape.hessian as hessian_module
from localsgd.errors import UserError
from localsgd.landscape import Hessian, Objective, dense, in_batches
from tests.distributed.harness import run
from tests.landscape.cases import (
    assert_same_state,
    batch_norm_net,
    objective,
    samples,
    state_of,
    the_dense_hessian,
)


def vectors(count: int, n: int) -> torch.Tensor:
    return torch.randn(count, n, dtype=torch.float64)


@pytest.mark.parametrize("graph_bytes", [0, 100_000, 1 << 30])
@pytest.mark.parametrize("batch", [1, 7, 30])
def test_products_are_those_of_the_dense_hessian(batch: int, graph_bytes: int) -> None:
    operator = Hessian(objective(batch=batch), graph_bytes=graph_bytes)
    v = vectors(3, operator.n)
    expected = v @ the_dense_hessian()
    for _ in range(2):  # the second time from kept graphs
        torch.testing.assert_close(operator.apply(v), expected, rtol=1e-11, atol=1e-12)


def test_all_products_make_the_dense_hessian() -> None:
    ours = dense(Hessian(objective(batch=16)))
    torch.testing.assert_close(ours, the_dense_hessian(), rtol=1e-12, atol=1e-13)


def test_graphs_are_kept_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    inner = Hessian._linearise
    monkeypatch.setattr(Hessian, "_linearise", lambda s, b: built.append(b.index) or inner(s, b))
    every = Hessian(objective())
    size = [every.apply(vectors(1, every.n)), max(one.bytes for one in every._kept)][1]
    every.apply(vectors(3, every.n))
    assert built == [0, 1, 2, 3, 4]
    built.clear()
    some = Hessian(objective(), graph_bytes=int(2.5 * size))
    for _ in range(3):
        some.apply(vectors(1, some.n))
    assert built == [0, 1, 2, 3, 4, 2, 3, 4, 2, 3, 4]


def test_central_differences_of_the_gradient() -> None:
    smooth = nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    subject = objective(smooth)
    (v,) = vectors(1, subject.n)
    step = 1e-5
    ahead, behind = (subject.gradient(subject.weights + s * v) for s in (step, -step))
    expected = (ahead - behind) / (2 * step)
    torch.testing.assert_close(Hessian(subject).apply(v[None])[0], expected, rtol=1e-7, atol=1e-9)


def test_logistic_regression_in_closed_form() -> None:
    """H = (1/N) X' diag(s (1 - s)) X, s = sigmoid(X w)."""
    x = torch.randn(50, 8, dtype=torch.float64)
    y = torch.randint(2, (50, 1)).double()
    net = nn.Linear(8, 1, bias=False).double()
    subject = Objective(net, nn.BCEWithLogitsLoss(), in_batches(x, y, 16))
    s = torch.sigmoid(x @ subject.weights)
    expected = x.T @ ((s * (1 - s))[:, None] * x) / 50
    torch.testing.assert_close(dense(Hessian(subject)), expected, rtol=1e-12, atol=1e-14)


def test_chosen_parameters_give_their_block() -> None:
    net = batch_norm_net()
    whole = the_dense_hessian()
    chosen = [n.startswith("3.") or n == "8.bias" for n, p in net.named_parameters()]
    sizes = [p.numel() for p in net.parameters()]
    pairs = zip(chosen, sizes, strict=True)
    mask = torch.cat([torch.full((size,), keep) for keep, size in pairs])
    block = whole[mask][:, mask]
    operator = Hessian(objective(net, parameters=("3.*", "8.bias")))
    v = vectors(3, int(mask.sum()))
    torch.testing.assert_close(operator.apply(v), v @ block, rtol=1e-11, atol=1e-12)


def test_tied_weights_count_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.tanh(self.a(x)))

    x, y = torch.randn(9, 4).double(), torch.randn(9, 4).double()
    subject = Objective(Tied().double(), nn.MSELoss(), [(x, y)])

    def loss(w: torch.Tensor) -> torch.Tensor:
        w = w.view(4, 4)
        return F.mse_loss(torch.tanh(x @ w.T) @ w.T, y)

    expected = torch.autograd.functional.hessian(loss, subject.weights)
    torch.testing.assert_close(dense(Hessian(subject)), expected, rtol=1e-12, atol=1e-14)


def test_a_loss_that_is_linear_in_the_weights_has_no_curvature() -> None:
    net = nn.Linear(3, 1).double()
    subject = Objective(net, lambda z, y: z.mean(), [(torch.randn(5, 3).double(), torch.ones(5))])
    assert not Hessian(subject).apply(vectors(2, 4)).any()


def test_the_model_is_left_alone() -> None:
    net = batch_norm_net()
    F.cross_entropy(net(samples()[0]), samples()[1]).backward()
    net[1].eval()
    net[3].bias.requires_grad_(False)
    before = state_of(net)
    subject = objective(net, parameters="*")
    Hessian(subject).apply(vectors(2, subject.n))
    subject.gradient()
    subject.score()
    assert_same_state(before, state_of(net))


def test_the_model_is_left_alone_when_it_fails() -> None:
    net = batch_norm_net()
    before = state_of(net)
    bad = [(samples()[0] * float("nan"), samples()[1])]
    operator = Hessian(Objective(net, nn.CrossEntropyLoss(), bad))
    with pytest.raises(UserError, match="finite"):
        operator.apply(vectors(1, operator.n))
    assert_same_state(before, state_of(net))


def test_later_training_does_not_change_an_operator() -> None:
    net = batch_norm_net()
    operator = Hessian(objective(net), graph_bytes=0)
    v = vectors(2, operator.n)
    before = operator.apply(v)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(1.0)
        net(samples()[0] + 3)
    assert torch.equal(operator.apply(v), before)


def _in_a_group(batch: int) -> torch.Tensor:
    import torch.distributed as dist

    torch.manual_seed(1)
    subject = objective(batch=batch, group=dist.group.WORLD)
    return Hessian(subject).apply(vectors(3, subject.n))


@pytest.mark.parametrize("batch", [7, 30])  # with 30, one process has no batch at all
def test_many_processes_are_one(batch: int) -> None:
    torch.manual_seed(1)
    operator = Hessian(objective())
    expected = operator.apply(vectors(3, operator.n))
    for result in run(2, _in_a_group, batch):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-14)


def test_one_reduction_for_all_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(hessian_module, "summed", lambda v, g: calls.append(v.shape) or v)
    operator = Hessian(objective())
    operator.apply(vectors(4, operator.n))
    assert calls == [(4 * operator.n + 3,)]


def test_data_that_change_are_refused() -> None:
    x, y = samples()

    def shuffled() -> list:
        order = torch.randperm(len(x))
        return in_batches(x[order], y[order], 7)

    operator = Hessian(Objective(batch_norm_net(), nn.CrossEntropyLoss(), shuffled), graph_bytes=0)
    operator.apply(vectors(1, operator.n))
    with pytest.raises(UserError, match="change from pass to pass"):
        operator.apply(vectors(1, operator.n))


class Overwrites(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = torch.tanh(self.inner(x.flatten(1)[:, :6]))
        squared = z**2
        z += 1  # tanh's derivative and the square's need the old z
        return squared


class Detaches(Overwrites):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x.flatten(1)[:, :6]).detach()


@pytest.mark.parametrize(("net", "match"), [(Overwrites(), "in place"), (Detaches(), "detach")])
def test_broken_graphs_get_one_line(net: nn.Module, match: str) -> None:
    operator = Hessian(objective(net))
    with pytest.raises(UserError, match=match) as caught:
        operator.apply(vectors(1, operator.n))
    assert "\n" not in str(caught.value)


def test_in_place_activations_are_no_trouble() -> None:
    def net(inplace: bool) -> nn.Module:
        torch.manual_seed(0)
        layers = (nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=inplace))
        return nn.Sequential(*layers, nn.Linear(5, 4)).double()

    v = vectors(2, 219)
    plain, in_place = (Hessian(objective(net(flag))).apply(v) for flag in (False, True))
    assert torch.equal(plain, in_place)
    assert plain.norm() > 0.1
