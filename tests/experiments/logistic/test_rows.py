"""What SciPy's sparse rows lack, against the same matrix written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array

from experiments.logistic.rows import gram, merged


@pytest.fixture
def dense() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random((9000, 7)) < 0.2, rng.normal(size=(9000, 7)).round(1), 0.0)


def test_gram(dense: np.ndarray) -> None:
    s = np.random.default_rng(1).normal(size=9000)
    expected = dense.T @ (s[:, None] ** 2 * dense)
    np.testing.assert_allclose(gram(csr_array(dense), s**2), expected, rtol=0, atol=1e-10)


def test_merged_rows_stand_for_all(dense: np.ndarray) -> None:
    rows, counts = merged(csr_array(dense))
    distinct, expected = np.unique(dense, axis=0, return_counts=True)
    order = np.lexsort(rows.toarray().T[::-1])
    assert np.array_equal(rows.toarray()[order], distinct)
    assert np.array_equal(counts[order], expected)
    assert rows.shape[0] < len(dense)
