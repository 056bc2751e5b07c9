"""f, its gradient and its Hessian, against autograd on the formula as printed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from experiments.logistic import Examples, Logistic
from localsgd.errors import UserError


def printed(problem: Logistic):
    """f of w as the paper prints it, in torch."""
    signed = torch.from_numpy(problem.signed.toarray())

    def f(w: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.exp(signed @ w)).mean() + problem.regularisation / 2 * (w @ w)

    return f


def test_value_gradient_and_hessian_equal_autograd(small: Logistic) -> None:
    w = np.random.default_rng(1).normal(size=small.features)
    at = torch.from_numpy(w).requires_grad_()
    value = printed(small)(at)
    (gradient,) = torch.autograd.grad(value, at)
    hessian = torch.autograd.functional.hessian(printed(small), torch.from_numpy(w))
    assert small.value(w) == pytest.approx(value.item(), abs=1e-14)
    np.testing.assert_allclose(small.gradient(w), gradient.numpy(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(small.hessian(w), hessian.numpy(), rtol=0, atol=1e-14)


def test_batch_gradients_average_to_the_gradient(small: Logistic) -> None:
    w = np.random.default_rng(1).normal(size=small.features)
    everything = np.arange(small.examples)
    np.testing.assert_allclose(
        small.batch_gradient(w, everything), small.gradient(w), rtol=0, atol=1e-14
    )
    twice = small.batch_gradient(w, np.array([4, 4, 7]))
    once = [small.batch_gradient(w, np.array([i])) for i in (4, 7)]
    np.testing.assert_allclose(twice, (2 * once[0] + once[1]) / 3, rtol=0, atol=1e-14)


def test_margins_of_any_size_are_finite() -> None:
    rows = csr_array(np.array([[1.0], [1.0]]))
    problem = Logistic.of(Examples(rows, np.array([True, False]), (0.0, 1.0)), 0.0)
    far = np.array([2000.0])
    assert problem.value(far) == 1000
    assert problem.gradient(far) == pytest.approx([0.5])
    assert problem.hessian(far) == pytest.approx(0)


def test_lambda_is_one_over_n_unless_said(small: Logistic) -> None:
    assert small.regularisation == 1 / 200
    rows = Examples(small.signed, np.arange(200) % 2 == 0, (0.0, 1.0))
    assert Logistic.of(rows, 0.25).regularisation == 0.25
    with pytest.raises(UserError, match="give a number >= 0"):
        Logistic.of(rows, -1.0)


@pytest.mark.parametrize(
    ("name", "examples", "features", "positive", "smoothness"),
    [("w8a", 49_749, 300, 1_479, 0.6611993845), ("a9a", 32_561, 123, 7_841, 1.5719196992)],
)
def test_real_data(
    real, name: str, examples: int, features: int, positive: int, smoothness: float
) -> None:
    data = real(name)
    problem = Logistic.of(data)
    assert (problem.examples, problem.features) == (examples, features)
    assert data.positive.sum() == positive
    assert problem.value(np.zeros(features)) == pytest.approx(np.log(2), abs=1e-15)
    assert problem.smoothness() == pytest.approx(smoothness, abs=1e-10)


def test_real_gradient_equals_autograd(real) -> None:
    problem = Logistic.of(real("w8a"))
    w = 0.3 * np.random.default_rng(0).normal(size=problem.features)
    at = torch.from_numpy(w).requires_grad_()
    (gradient,) = torch.autograd.grad(printed(problem)(at), at)
    np.testing.assert_allclose(problem.gradient(w), gradient.numpy(), rtol=0, atol=1e-12)
