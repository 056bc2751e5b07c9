"""Power iteration with deflation: largest magnitudes, and what its own test misses."""

from __future__ import annotations

import pytest
import torch

from localsgd.landscape import Hessian, Matrix, lanczos, power_iteration
from tests.landscape.cases import (
    hard_spectrum,
    objective,
    the_dense_hessian,
    with_spectrum,
)


def test_largest_magnitudes_of_a_batch_norm_net() -> None:
    matrix = the_dense_hessian()
    exact = torch.linalg.eigvalsh(matrix)
    largest = exact[exact.abs().argsort(descending=True)][:3]
    found = power_iteration(Matrix(matrix), 3, tolerance=1e-12, max_products=5000)
    assert sorted(found.values) == pytest.approx(sorted(largest.tolist()), rel=1e-8)


def test_a_dominant_negative_value_comes_first() -> None:
    found = power_iteration(Matrix(with_spectrum(hard_spectrum())), 1)
    assert found.values[0] == pytest.approx(-5, rel=1e-3)
    assert found.residuals[0] < 0.2
    assert found.converged == (True,)


def test_a_multiple_value_is_found_as_often_as_it_is_there() -> None:
    found = power_iteration(Matrix(with_spectrum([3.0, 3.0, 3.0, 1.0, 0.5])), 4, tolerance=1e-12)
    assert found.values == pytest.approx((3, 3, 3, 1), rel=1e-8)


def test_the_paper_s_test_alone_stops_early_at_a_close_pair_and_the_residual_says_so() -> None:
    matrix = Matrix(with_spectrum([1.0, 0.99, *torch.linspace(0, 0.97, 98).tolist()]))
    early = power_iteration(matrix, 1, tolerance=1e-3)
    assert early.converged == (True,)
    assert early.residuals[0] > 0.02
    assert abs(early.values[0] - 1) > 1e-3
    asked = power_iteration(matrix, 1, tolerance=1e-3, residual_tolerance=1e-4, max_products=5000)
    assert asked.residuals[0] <= 1e-4
    assert asked.values[0] == pytest.approx(1, abs=1e-6)


def test_lanczos_takes_at_most_half_of_its_products() -> None:
    matrix = the_dense_hessian()
    power = power_iteration(Matrix(matrix), 10)
    assert lanczos(Matrix(matrix), 10).products <= power.products / 2


def test_on_a_hessian() -> None:
    found = power_iteration(Hessian(objective()), 1)
    assert found.values[0] == pytest.approx(lanczos(Hessian(objective()), 1).largest, rel=1e-3)


def test_limits_and_zero() -> None:
    found = power_iteration(Matrix(with_spectrum([1.0, 0.999, 0.5])), 1, max_products=3)
    assert (found.products, found.converged) == (3, (False,))
    assert power_iteration(Matrix(torch.zeros(4, 4)), 2).values == (0, 0)
