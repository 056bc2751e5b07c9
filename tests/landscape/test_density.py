"""Stochastic Lanczos quadrature: exact moments of each start, and of all from a full set."""

from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.landscape import Hessian, Matrix, spectral_density
from tests.landscape.cases import (
    hard_spectrum,
    moments_of,
    objective,
    the_dense_hessian,
    with_spectrum,
)


def test_moments_of_a_batch_norm_net() -> None:
    """Within four standard errors of tr(H)/n and tr(H^2)/n; weights of each start add to 1."""
    matrix = the_dense_hessian()
    found = spectral_density(Hessian(objective(batch=16)), 8, 10)
    ones = torch.ones(10, dtype=torch.float64)
    torch.testing.assert_close(found.weights.sum(1), ones, rtol=0, atol=1e-12)
    for power, exact in enumerate(moments_of(matrix), start=1):
        value, error = found.moment(power)
        assert abs(value - exact) < 4 * error


def test_from_all_unit_vectors_the_moments_are_exact() -> None:
    """Starts e_1 ... e_n average v'A^p v to tr(A^p)/n, and m steps are exact up to 2m - 1."""
    matrix = the_dense_hessian()
    n = matrix.shape[0]
    starts = torch.eye(n, dtype=torch.float64)
    found = spectral_density(Matrix(matrix), 4, vectors=starts)
    product = torch.eye(n, dtype=torch.float64)
    scale = float(torch.linalg.eigvalsh(matrix).abs().max())
    for power in range(1, 8):
        product = product @ matrix
        exact = float(product.trace()) / n
        assert found.moment(power)[0] == pytest.approx(exact, abs=1e-10 * scale**power)


def test_each_start_s_moments_are_its_own() -> None:
    matrix = with_spectrum(hard_spectrum())
    v = torch.randn(3, 200, dtype=torch.float64)
    found = spectral_density(Matrix(matrix), 6, vectors=v)
    unit = v / v.norm(dim=1, keepdim=True)
    image = unit
    for power in range(1, 12):
        image = image @ matrix
        exact = (unit * image).sum(1)
        ours = (found.weights * found.nodes**power).sum(1)
        torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-9)


def test_a_start_whose_space_is_exhausted() -> None:
    """Two distinct values: after 2 steps all is said, and later steps change nothing."""
    matrix = Matrix(torch.diag(torch.tensor([3.0] * 5 + [-1.0] * 15, dtype=torch.float64)))
    found = spectral_density(matrix, 8, 4)
    for power in range(1, 6):
        assert found.moment(power)[0] == pytest.approx((5 * 3**power + 15 * (-1) ** power) / 20)
    assert found.share(2.9, 3.1) == pytest.approx(0.25)


def test_the_curve_is_a_density() -> None:
    found = spectral_density(Matrix(with_spectrum(hard_spectrum())), 30, 3)
    t, values = found.curve(2000)
    assert float(torch.trapezoid(values, t)) == pytest.approx(1, abs=1e-3)
    assert float(t[values.argmax()]) < 2.5  # the bulk, not an outlier


def test_cost_and_single_precision() -> None:
    found = spectral_density(Matrix(with_spectrum(hard_spectrum()).float()), 10, 3)
    assert found.products == 30
    exact, _ = moments_of(with_spectrum(hard_spectrum()))
    value, error = found.moment(1)
    assert abs(value - exact) < 4 * error + 1e-5


def test_nothing_asked_for() -> None:
    with pytest.raises(UserError, match="0 steps"):
        spectral_density(Matrix(torch.eye(3)), 0)
