"""Traces: exact where they must be, and within their stated error where they are random."""

from __future__ import annotations

import pytest
import torch

from localsgd.errors import UserError
from localsgd.landscape import Hessian, Matrix, hutch_plus_plus, hutchinson
from tests.landscape.cases import objective, the_dense_hessian, with_spectrum


@pytest.mark.parametrize("method", [hutchinson, hutch_plus_plus])
def test_trace_of_a_batch_norm_net_within_four_standard_errors(method) -> None:
    exact = float(the_dense_hessian().trace())
    found = method(Hessian(objective()), 120)
    assert found.products <= 120
    assert abs(found.value - exact) < 4 * found.standard_error
    assert found.standard_error < 0.3 * abs(exact)


def test_hutchinson_is_exact_for_a_diagonal() -> None:
    found = hutchinson(Matrix(torch.diag(torch.arange(9.0))), 3)
    assert (found.value, found.standard_error) == (36, 0)


def test_hutchinson_s_error_is_what_theory_says() -> None:
    """The variance of one probe is 2 (||A||_F^2 - sum A_ii^2)."""
    matrix = with_spectrum([4.0, -3.0, 1.0, 1.0, 0.5, 0.0])
    found = hutchinson(Matrix(matrix), 4000)
    variance = 2 * float((matrix**2).sum() - (matrix.diagonal() ** 2).sum())
    assert found.standard_error**2 * 4000 == pytest.approx(variance, rel=0.1)
    assert abs(found.value - 3.5) < 4 * found.standard_error


def test_hutch_plus_plus_is_exact_for_low_rank() -> None:
    matrix = with_spectrum([5.0, -2.0, 1.0, *[0.0] * 47])
    found = hutch_plus_plus(Matrix(matrix), 12)
    assert found.value == pytest.approx(4, abs=1e-10)
    assert found.standard_error < 1e-10


def test_hutch_plus_plus_beats_hutchinson_on_a_spectrum_that_falls_fast() -> None:
    values = [2.0**-i for i in range(60)]
    matrix = Matrix(with_spectrum(values))
    plain, better = (m(matrix, 30, seed=1) for m in (hutchinson, hutch_plus_plus))
    assert abs(better.value - sum(values)) < 1e-2 * abs(plain.value - sum(values))


def test_small_matrices_are_done_exactly() -> None:
    found = hutch_plus_plus(Matrix(with_spectrum([1.0, 2.0])), 30)
    assert found.value == pytest.approx(3, abs=1e-12)
    assert found.standard_error == 0


@pytest.mark.parametrize(("method", "products"), [(hutchinson, 0), (hutch_plus_plus, 2)])
def test_too_few_products(method, products: int) -> None:
    with pytest.raises(UserError, match=f"from {products} products"):
        method(Matrix(torch.eye(3)), products)
