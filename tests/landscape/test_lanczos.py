"""Lanczos against dense eigenvalues: a net's Hessian, and spectra that are hard on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from localsgd.errors import UserError
from localsgd.landscape import (
    Hessian,
    Matrix,
    hutch_plus_plus,
    hutchinson,
    lanczos,
    power_iteration,
    spectral_density,
)
from tests.landscape.cases import (
    hard_spectrum,
    objective,
    the_dense_hessian,
    with_spectrum,
)


def residuals_of(matrix: torch.Tensor, found) -> torch.Tensor:
    values = torch.tensor(found.values, dtype=matrix.dtype)
    return (found.vectors @ matrix - values[:, None] * found.vectors).norm(dim=1)


@pytest.mark.parametrize("options", [{}, {"block": 4}, {"max_basis": 32}])
def test_top_ten_and_bottom_three_of_a_batch_norm_net(options: dict) -> None:
    matrix = the_dense_hessian()
    exact = torch.linalg.eigvalsh(matrix).flip(0)
    found = lanczos(Hessian(objective()), 10, 3, tolerance=1e-7, **options)
    expected = torch.cat([exact[:10], exact[-3:]])
    values = torch.tensor(found.values, dtype=torch.float64)
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-8 * float(exact[0]))
    assert all(found.converged)
    assert found.products < 200


def test_values_are_right_to_what_their_residuals_say() -> None:
    """At a loose tolerance each value lies within its residual, and far nearer in fact."""
    matrix = the_dense_hessian()
    exact = torch.linalg.eigvalsh(matrix).flip(0)[:10]
    found = lanczos(Hessian(objective()), 10, tolerance=1e-2)
    values, residuals = torch.tensor([found.values, found.residuals], dtype=torch.float64)
    errors = (values - exact).abs()
    assert bool((errors <= residuals + 1e-12).all())
    assert float(errors.max()) < 1e-3 * float(exact[0])


@pytest.mark.parametrize("block", [1, 3])
def test_reported_residuals_are_the_true_ones(block: int) -> None:
    matrix = with_spectrum(torch.linspace(-1, 3, 120).tolist())
    found = lanczos(Matrix(matrix), 4, 2, block=block, tolerance=1e-2, max_basis=20)
    reported = torch.tensor(found.residuals, dtype=torch.float64)
    torch.testing.assert_close(residuals_of(matrix, found), reported, rtol=1e-6, atol=1e-12)
    assert float(reported.max()) > 1e-6  # or there was nothing to compare


@pytest.mark.parametrize("options", [{}, {"max_basis": 40}])
def test_close_pairs_a_triple_and_a_dominant_negative(options: dict) -> None:
    values = hard_spectrum()
    matrix = with_spectrum(values)
    found = lanczos(Matrix(matrix), 6, 3, block=3, tolerance=1e-8, **options)
    assert found.values == pytest.approx(
        (4.0001, 4.0, 3.001, 3.0, 3.0, 3.0, -1.0, -1.001, -5.0), abs=1e-8
    )
    assert found.largest == pytest.approx(4.0001)
    gram = found.vectors @ found.vectors.T
    torch.testing.assert_close(gram, torch.eye(9, dtype=torch.float64), rtol=0, atol=1e-8)


def test_an_exhausted_space_goes_on_with_a_new_direction() -> None:
    """Two distinct values: each start adds one copy of both, and nothing between them."""
    diagonal = torch.tensor([2.0] * 5 + [1.0] * 45, dtype=torch.float64)
    found = lanczos(Matrix(torch.diag(diagonal)), 7, 1)
    assert found.values == pytest.approx((2, 2, 2, 2, 1, 1, 1, 1))
    assert max(found.residuals) < 1e-12
    in_blocks = lanczos(Matrix(torch.diag(diagonal)), 7, 1, block=5)
    assert in_blocks.values == pytest.approx((2, 2, 2, 2, 2, 1, 1, 1))


def test_all_values_of_a_small_matrix() -> None:
    matrix = with_spectrum([5.0, 1.0, 1.0, -2.0])
    found = lanczos(Matrix(matrix), 10, 10)
    assert found.values == pytest.approx((5, 1, 1, -2))
    assert found.products == 4


def test_zero_and_one_dimension() -> None:
    assert lanczos(Matrix(torch.zeros(6, 6)), 2).values == (0, 0)
    assert lanczos(Matrix(torch.tensor([[3.0]])), 1).values == (3,)


def test_what_has_not_converged_is_marked() -> None:
    found = lanczos(Matrix(with_spectrum(hard_spectrum())), 6, max_products=8)
    assert found.products == 8
    assert not all(found.converged)


def test_the_same_seed_gives_the_same_values() -> None:
    matrix = Matrix(with_spectrum(hard_spectrum()))
    assert lanczos(matrix, 5, seed=4).values == lanczos(matrix, 5, seed=4).values
    assert lanczos(matrix, 5, seed=4).residuals != lanczos(matrix, 5, seed=5).residuals


def test_progress_is_told() -> None:
    told = []
    lanczos(Matrix(with_spectrum([3.0, 2.0, 1.0])), 2, progress=lambda *p: told.append(p))
    assert told[-1] == ("Lanczos", 2, 2)


@pytest.mark.parametrize("wanted", [(0, 0), (-1, 3)])
def test_nothing_asked_for(wanted: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="at least 1"):
        lanczos(Matrix(torch.eye(4)), *wanted)


def test_a_basis_that_is_too_small() -> None:
    with pytest.raises(UserError, match="max_basis=12"):
        lanczos(Matrix(torch.eye(50)), 10, max_basis=10)


@pytest.mark.parametrize(
    "find",
    [
        lambda matrix: lanczos(matrix, 1),
        power_iteration,
        lambda matrix: hutchinson(matrix, 6),
        lambda matrix: hutch_plus_plus(matrix, 6),
        lambda matrix: spectral_density(matrix, 3, 2),
    ],
)
def test_a_product_that_is_not_finite_is_no_eigenvalue(find: Callable[[Matrix], Any]) -> None:
    matrix = torch.diag(torch.tensor([1.0, torch.inf, 2.0, 3.0], dtype=torch.float64))
    with pytest.raises(UserError, match="a product with the curvature is not finite"):
        find(Matrix(matrix))
