from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.inner import Clip, GradientNoise


def test_a_gradient_is_clipped_like_torch_does_it() -> None:
    draw = torch.Generator().manual_seed(0)
    for scale in (0.01, 1.0, 100.0):
        gradient = scale * torch.randn(40, generator=draw, dtype=torch.float64)
        parameter = torch.nn.Parameter(torch.zeros(40, dtype=torch.float64))
        parameter.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([parameter], 2.0)
        Clip(2.0)(gradient, worker=0, step=0)
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-14, atol=0)


def test_noise_has_the_papers_variance_and_is_the_same_for_all_workers() -> None:
    noise = GradientNoise(eta=0.04, gamma=1.0, seed=3)
    assert [noise.variance(t) for t in (0, 1, 3)] == [0.04, 0.02, 0.01]
    drawn = {}
    for worker, step in ((0, 0), (1, 0), (0, 3)):
        drawn[worker, step] = torch.zeros(100_000, dtype=torch.float64)
        noise(drawn[worker, step], worker, step)
    assert torch.equal(drawn[0, 0], drawn[1, 0])
    # The deviation of a variance estimated from n draws is sqrt(2/n): 0.0045 of it; five of them.
    assert float(drawn[0, 0].var()) == pytest.approx(0.04, rel=0.0225)
    assert float(drawn[0, 3].var()) == pytest.approx(0.01, rel=0.0225)
    assert abs(float((drawn[0, 0] * drawn[0, 3]).mean())) < 5 * 0.02 / 100_000**0.5


def test_mistakes() -> None:
    with pytest.raises(UserError, match="norm of 0"):
        Clip(0.0)
    with pytest.raises(UserError, match="eta = -1"):
        GradientNoise(-1.0)
