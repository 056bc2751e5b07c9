"""Small exact problems: a float64 net with batch norm, logistic regression, known spectra.

Letters: n parameters, N samples.
"""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

from localsgd.landscape import Objective, in_batches

SAMPLES, CLASSES = 30, 4


def samples(count: int = SAMPLES) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(5)
    x = torch.randn(count, 1, 6, 6, generator=draw, dtype=torch.float64)
    return x, torch.randint(CLASSES, (count,), generator=draw)


def batch_norm_net(seed: int = 3) -> nn.Module:
    """382 parameters, with running statistics away from where they start; in train mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3),
            nn.BatchNorm2d(6),
            nn.Tanh(),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(24, CLASSES),
        ).double()
        net(samples()[0])
    return net


def objective(net: nn.Module | None = None, batch: int = 7, **options) -> Objective:
    """The net's mean cross entropy over 30 samples; batches of 7 leave a last one of 2."""
    net = batch_norm_net() if net is None else net
    return Objective(net, nn.CrossEntropyLoss(), in_batches(*samples(), batch), **options)


def dense_hessian(net: nn.Module) -> Tensor:
    """[n, n] by torch's own Hessian of all samples at once, in eval mode."""
    net = copy.deepcopy(net).eval()
    x, y = samples()
    names = [name for name, _ in net.named_parameters()]
    shapes = [p.shape for p in net.parameters()]
    sizes = [p.numel() for p in net.parameters()]

    def loss(flat: Tensor) -> Tensor:
        parts = [v.view(s) for v, s in zip(flat.split(sizes), shapes, strict=True)]
        output = functional_call(net, dict(zip(names, parts, strict=True)), (x,))
        return nn.functional.cross_entropy(output, y)

    flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    return torch.autograd.functional.hessian(loss, flat)


@cache
def the_dense_hessian() -> Tensor:
    """The Hessian of `batch_norm_net()`; not to be written to."""
    return dense_hessian(batch_norm_net())


def with_spectrum(values: list[float], seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    draw = torch.Generator().manual_seed(seed)
    n = len(values)
    q = torch.linalg.qr(torch.randn(n, n, generator=draw, dtype=torch.float64))[0]
    return q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ q.T


def hard_spectrum() -> list[float]:
    """n = 200: a dominant -5, close pairs at the top, a triple 3, the rest between 0.5 and 2."""
    bulk = torch.linspace(0.5, 2, 191, dtype=torch.float64).tolist()
    return [4.0001, 4.0, 3.001, 3.0, 3.0, 3.0, -1.0, -1.001, -5.0, *bulk]


def moments_of(matrix: Tensor) -> tuple[float, float]:
    """tr(A) / n and tr(A^2) / n."""
    n = matrix.shape[0]
    return float(matrix.trace()) / n, float((matrix * matrix).sum()) / n


def state_of(net: nn.Module) -> dict:
    """All that a measurement must leave alone."""
    return {
        "values": {k: v.clone() for k, v in net.state_dict().items()},
        "grads": [None if p.grad is None else p.grad.clone() for p in net.parameters()],
        "requires": [p.requires_grad for p in net.parameters()],
        "modes": [module.training for module in net.modules()],
        "hooks": [len(m._forward_pre_hooks) + len(m._forward_hooks) for m in net.modules()],
    }


def assert_same_state(before: dict, after: dict) -> None:
    assert before["modes"] == after["modes"]
    assert before["requires"] == after["requires"]
    assert before["hooks"] == after["hooks"]
    for name, value in before["values"].items():
        assert torch.equal(value, after["values"][name]), name
    for one, two in zip(before["grads"], after["grads"], strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)
