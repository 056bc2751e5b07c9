"""Sparse rows against the same matrix written out."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.logistic import Rows


@pytest.fixture
def dense() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random((9000, 7)) < 0.2, rng.normal(size=(9000, 7)).round(1), 0.0)


@pytest.fixture
def rows(dense: np.ndarray) -> Rows:
    lengths = (dense != 0).sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Rows(starts, np.nonzero(dense)[1], dense[dense != 0], 7)


def test_products(rows: Rows, dense: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    w, s = rng.normal(size=7), rng.normal(size=9000)
    np.testing.assert_allclose(rows.dot(w), dense @ w, rtol=0, atol=1e-13)
    np.testing.assert_allclose(rows.transpose_dot(s), dense.T @ s, rtol=0, atol=1e-11)
    gram = dense.T @ (s[:, None] ** 2 * dense)
    np.testing.assert_allclose(rows.gram(s**2), gram, rtol=0, atol=1e-10)


def test_parts(rows: Rows, dense: np.ndarray) -> None:
    assert np.array_equal(rows.dense(), dense)
    assert np.array_equal(rows.dense(4, 9), dense[4:9])
    chosen = np.array([5, 0, 8999, 5])
    assert np.array_equal(rows.take(chosen).dense(), dense[chosen])
    factors = np.arange(9000.0)
    assert np.array_equal(rows.scaled(factors).dense(), factors[:, None] * dense)


def test_merged_rows_stand_for_all(rows: Rows, dense: np.ndarray) -> None:
    merged, counts = rows.merged()
    distinct, expected = np.unique(dense, axis=0, return_counts=True)
    order = np.lexsort(merged.dense().T[::-1])
    assert np.array_equal(merged.dense()[order], distinct)
    assert np.array_equal(counts[order], expected)
    assert len(merged) < len(rows)
